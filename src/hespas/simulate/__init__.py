"""From a task graph and a system to a timeline.

In come the tasks of all devices (`schedule`) and a system (`hardware`); out comes a
`timeline.Timeline`: when each task runs on each class of equal devices.

* `models`: the network models and `simulate_job`, which runs a job by one of them.
* `astra`: what ASTRA-sim's analytical simulators compute, to the nanosecond. `flow`: hespas' own
  model, in which streams overlap and transfers share links max-min fairly.
* `kernel` (clock, queue, actors) and `matching` (messages and collectives that wait for their
  partners) run every event loop; `deadlock` reports what never ends.
* `imperfect` puts slow devices, bad links and several programs into a job, `chains` joins kernels
  that follow each other, `rounds` multiplies those of loops, `memory_guard` refuses jobs too large
  for the memory that is there.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "astra.messages": ("ContentionModel", "contention_model_named"),
    "astra.options": ("PER_NODE", "custom_option"),
    "astra.replay": ("is_replay",),
    "astra.simulate": ("simulate",),
    "astra.streamed": ("simulate_streamed",),
    "chains": ("Chained", "chained", "opened"),
    "external_result": ("DeviceFigures", "ExternalResult"),
    "flow.choices": ("CHOICES", "parse_choice"),
    "flow.measured": ("nearest_size",),
    "imperfect": ("joined_job",),
    "models": (
        "Model",
        "ModelChoice",
        "check_choice",
        "default_model",
        "model_named",
        "simulate_job",
        "simulated_again",
    ),
    "rounds": ("Repeat", "extended"),
    "timeline": ("ClassTimeline", "Timeline"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
