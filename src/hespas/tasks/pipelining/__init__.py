"""Schedule pipelines: order and times of stages' passes.

The inputs are a schedule's name or text, and the duration of each pass of each stage; the output is
when each stage runs which pass. All of it is plain values, independent of models, programs and
networks. `schedule` has the passes of each stage in order, `timing` their start and end times,
`options` the user's options.
"""
