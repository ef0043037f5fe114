"""What of a long run's time is progress, with failures, checkpoints, restarts and spares.

`model` has the closed forms, `simulation` plays a run through with a seed and agrees with them,
`failures` is how often parts fail, with sources, and `options` is what a user says of a run.
"""
