"""What every stage uses: fields of options, files, units, limits, progress and other processes.

`fields` declares an option as a field of a dataclass, from which flags, keys, help and checks
derive; `groups` are the headings under which help shows options. `decode` turns the values of a
file into structs or dataclasses, with errors that name the key; `config_files` reads JSON and YAML;
`suggest` names what the user probably meant; `figures` are the types of figures. `cache` keeps
content under keys; `process` and `worker` run other programs in processes of their own.
"""
