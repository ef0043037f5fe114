"""Compare predictions with measurements.

`measure` runs steps on the devices of this machine and times them, `validate` predicts published
steps, and `calibrate` turns measurements of a cluster into a preset. Each returns values with the
measured and the predicted figures; `hespas.report` and the commands show them.
"""
