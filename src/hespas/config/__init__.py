"""What options and files are made of: fields with flags and keys, decoding, and hints.

`fields` declares an option as a field of a dataclass, from which flags, keys, help and checks
derive; `groups` are the headings under which help shows options. `decode` turns the values of a
file into structs or dataclasses, with errors that name the key; `files` reads JSON and YAML;
`suggest` names what the user probably meant; `figures` are the types of figures. `estimators` holds
the keys of ``perf_estimator`` that all methods share. The documented configuration file is read by
`hespas.options.read_configuration`.
"""
