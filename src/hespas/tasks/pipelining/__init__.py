"""Pipelines of several programs: in which order each stage computes its micro-batches, and when.

In come a schedule's name or its text, and the duration of each pass of each stage; out comes when
each stage does what. All of it is plain values: nothing here knows of models, programs or networks.

* `schedule` has the values: a `schedule.Schedule` lists the passes of each stage in order.
* `generate` makes the schedules that frameworks have, by name; `text` reads one's own.
* `order` refuses what can't run: passes that are missing, and a schedule that deadlocks.
* `timing` finds when each pass starts and ends, from the durations of passes and of messages.
* `options` has what a user chooses of it.
* `laws` has closed forms: the bubble, and how many micro-batches a stage holds.
"""
