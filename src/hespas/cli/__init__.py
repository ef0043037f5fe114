"""The command line; commands are imported when called.

`main` starts the process and `commands` finds a command, runs it and turns its errors into one
line. `answers` makes a command of a function that returns its text and JSON. `flags` makes flags
from the fields of options dataclasses, and `hespas.prediction.options.PredictOptions` from the
user's flags; `outputs` writes files. Commands compose no stages: they call `hespas.prediction`.
Only code that starts the process imports this folder.
"""
