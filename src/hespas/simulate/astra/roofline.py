"""Durations of computations whose trace has only their work and traffic.

Source: ASTRA-sim's roofline.
"""

from __future__ import annotations

from dataclasses import replace

from hespas.base.units import PS_PER_NS
from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.simulate.astra.replay import is_replay
from hespas.tasks.graph import ComputeTask, EmptyTask, Job, Task


def with_durations(job: Job, system: System | None) -> Job:
    """Return the job with a duration for every computation.

    It is the roofline's where the system has ``roofline-enabled``. Raises `SimulationError` as
    `with_roofline` does, and elsewhere for a computation that has work and no duration.
    """
    if system is not None and system.options.get("roofline-enabled") and not is_replay(system):
        return with_roofline(job, system)
    for graph in job.graphs:
        for task in graph.tasks:
            if isinstance(task, ComputeTask) and not task.has_duration:
                raise SimulationError(
                    f"task {task.id} ({task.name}) has num_ops or tensor_size and no duration",
                    location=graph.name,
                    hint="give it a duration, or set roofline-enabled, peak-perf and local-mem-bw "
                    "in system.json",
                )
    return job


def with_roofline(job: Job, system: System) -> Job:
    """Return the job with the durations that the system's peak and local memory allow.

    A computation of N operations that moves M bytes takes ``floor(N / min(peak, bw N / M))``,
    in ns; those on a CPU keep their durations. One of no bytes is skipped: it ends when it
    starts, and what depends on it starts when another task of the device ends. Raises
    `SimulationError` for a computation that lacks ``num_ops`` or ``tensor_size``, or has 0
    operations, and a system without ``peak-perf`` (TFLOP/s) or ``local-mem-bw``.
    """
    peak, bandwidth = system.options.get("peak-perf"), system.local_memory_bandwidth_bytes_per_s
    if not isinstance(peak, int | float) or bandwidth is None:
        hint = "add both to system.json"
        raise SimulationError(
            "roofline-enabled needs peak-perf and local-mem-bw", location=system.name, hint=hint
        )
    graphs = [
        replace(graph, tasks=tuple([_timed(task, peak * 1e12, bandwidth) for task in graph.tasks]))
        for graph in job.graphs
    ]
    return replace(job, graphs=tuple(graphs))


def _timed(task: Task, peak: float, bandwidth: float) -> Task:
    if not isinstance(task, ComputeTask) or task.is_on_host:
        return task
    if task.operations is not None and task.tensor_bytes == 0:
        # ASTRA-sim skips it, as a node that does nothing.
        return EmptyTask(id=task.id, name=task.name, depends_on=task.depends_on, is_compute=True)
    if not task.operations or not task.tensor_bytes:
        message = "roofline-enabled needs num_ops, above 0, and tensor_size"
        hint = "give it both, or mark computation of the CPU with is_cpu_op"
        raise SimulationError(message, location=f"task {task.id} ({task.name})", hint=hint)
    rate = min(bandwidth * (task.operations / task.tensor_bytes), peak)
    duration_ns = int(task.operations / rate * 1e9)
    return replace(task, duration_ps=duration_ns * PS_PER_NS, has_duration=True)
