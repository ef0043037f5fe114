"""Shared tools of all stages: options, files, units, limits, processes.

`fields` declares an option as a field of a dataclass, from which flags, keys, help and checks
derive. `decode` reads JSON and YAML and turns their values into structs or dataclasses, with errors
that name the key; `suggest` names the word that the user probably meant; `figures` are the types
and limits of numbers, `units` reads and prints quantities, `table` reads CSV. `cache` keeps content
under keys, `files` writes files and directories atomically, `progress` reports long stages.
`process` and `question` run other programs and modules in their own processes.
"""
