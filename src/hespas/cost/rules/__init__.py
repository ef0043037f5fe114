"""The rules of work: one small function for each kind of operation, beside its derivation.

`table` joins the files' tables and lists the kinds without a rule; `sizes` holds what rules read
off an operation's types.
"""
