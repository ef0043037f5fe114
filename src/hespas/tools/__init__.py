"""Other programs, in processes of their own.

`process` runs one to its end: in a directory of its own, with a time limit, a memory limit and a
log that is kept when it fails. `interruption` ends those that other threads wait for. `worker`
talks to a Python process that stays, so that its start is paid once.
"""
