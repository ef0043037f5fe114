"""SST: the Structural Simulation Toolkit, with its elements merlin, firefly and ember.

`traces` writes what each rank does as SIRIUS traces, `network` the Python file that SST runs, `run`
runs it and reads the time that it says. Formats as met in SST 16.0.0.
"""
