"""The command line: a command is a file, ``NAME_command.py``, imported when it is called.

Those of studies, ``sweep`` and ``search`` too, are in ``study_command``.

`main` starts the process and `commands` runs a command and turns its errors into one line. `flags`
makes flags from the fields of options dataclasses, and `hespas.prediction.options.PredictOptions`
from what was given; `outputs` writes files. Commands compose no stages: they call
`hespas.prediction`. Only what starts the process imports this folder.
"""
