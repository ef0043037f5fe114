"""The command line: files of commands, imported when one of theirs is called.

`main` starts the process and `commands` finds a command, runs it and turns its errors into one
line. `answers` makes a command of a function that returns its text and JSON. `flags` makes flags
from the fields of options dataclasses, and `hespas.prediction.options.PredictOptions` from what was
given; `outputs` writes files. Commands compose no stages: they call `hespas.prediction`. Only what
starts the process imports this folder.
"""
