"""Chakra execution traces: one file of nodes per device, and ``comm_group.json``.

`format.write_traces` writes a job or task graph, `reader.read_traces` reads it back, and
`nodes.parse_node` one message of them. `format` has the messages' names and numbers.
"""
