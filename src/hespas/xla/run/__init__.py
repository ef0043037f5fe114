"""Compile and time modules on this machine.

`worker` is the process that times single modules; `step` times whole steps of a program on several
devices, with made-up inputs;
`messages` is what it and the asking process exchange.
"""
