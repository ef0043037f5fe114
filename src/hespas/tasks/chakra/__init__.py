"""Write and read Chakra execution traces.

A trace has one file of nodes per device, and ``comm_group.json``. `format.write_traces` writes a
job or task graph, `reader.read_traces` reads it back, and `reader.read_messages` reads one member's
part of a custom collective as `nodes.ParsedNode`. `format` has the messages' names and numbers.
"""
