"""Pipelines of several programs: in which order each stage computes its micro-batches, and when.

In come a schedule's name or its text, and the duration of each pass of each stage; out comes when
each stage does what. All of it is plain values: nothing here knows of models, programs or networks.
`schedule` has the passes of each stage in order, `timing` when they run, `options` what a user
chooses.
"""
