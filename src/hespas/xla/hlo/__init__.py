"""HLO modules as protobuf messages.

`forms` recognises HLO text and protos without importing protobuf, `module` reads them, adds
attributes and converts them to StableHLO, `schema` holds the message classes.
"""
