"""uet-htsim: a simulator of packets, as a judge of how transfers share links.

`matrix` writes the messages of a job as a connection matrix with triggers, `run` runs the program
on it and reads when flows end. Formats as met in commit 40ccb05.
"""
