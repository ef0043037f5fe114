"""Which groups of a system what was measured of collectives is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hespas.errors import MeasurementError, option
from hespas.evidence.calibrate.nccl_tests import CollectiveRun
from hespas.hardware.interconnect import Dimensions, Interconnect
from hespas.hardware.links import Link
from hespas.simulate.flow.planning import nearest_size

_PAIR = 2
_PARTS = ("reduce_scatter", "all_gather")
"""What an all-reduce is along all dimensions but the last of its group."""


def check_messages(runs: Sequence[CollectiveRun]) -> None:
    """Raise `MeasurementError` for messages among more than two devices."""
    for run in runs:
        if run.kind == "send_recv" and run.gpus != _PAIR:
            raise MeasurementError(
                f"send_recv among {run.gpus} is of no group: messages are between two devices",
                location=run.points[0].location,
                hint="measure it with 2 ranks",
            )


def with_reach(
    runs: Sequence[CollectiveRun], network: Interconnect, base: Link | None
) -> list[CollectiveRun]:
    """Return the runs, with notes of the groups that they are not for.

    The link that they make, the rest of which is as in ``base``, is that of the first dimension
    of ``network``. Raises `MeasurementError` for more ranks than stand along it.
    """
    fabric = network.fabric
    if not isinstance(fabric, Dimensions):
        return list(runs)
    size = fabric.dimensions[0].size
    for run in runs:
        if run.gpus > size:
            raise MeasurementError(
                f"{run.kind} among {run.gpus} is of no group: {size} devices stand along the first "
                f"dimension of {network.name}, whose link is measured",
                location=run.points[0].location,
                hint=f"measure {size} ranks or fewer, or give a {option('system')} whose first "
                f"dimension has {run.gpus}",
            )
    return [
        replace(run, notes=(*run.notes, *_notes(run, runs, network, fabric, base))) for run in runs
    ]


def _notes(
    run: CollectiveRun,
    runs: Sequence[CollectiveRun],
    network: Interconnect,
    fabric: Dimensions,
    base: Link | None,
) -> Iterator[str]:
    kinds = {each.kind for each in runs}
    first, *more = fabric.dimensions
    own = {each.gpus for each in runs if each.kind == run.kind}
    if network.algorithms.get(run.kind, ("hierarchical",))[0] != "hierarchical":
        yield f"{network.name} says how {run.kind} runs, which goes before what is measured"
    if run.kind != "send_recv" and run.gpus == max(own) < first.size:
        yield _other_groups(run, own, first.size, base)
    if more and run.kind == "all_reduce" and not kinds.issuperset(_PARTS):
        yield (
            f"it is for groups within the first dimension of {network.name}: along it, those that "
            "go beyond reduce-scatter and gather, which are measurements of their own"
        )


def _other_groups(run: CollectiveRun, own: set[int], size: int, base: Link | None) -> str:
    known = set[int]() if base is None else set(base.collectives.get(run.kind, ()))
    nearest = nearest_size(own | known, size)
    scope = f"it is for groups of {run.gpus}; those of all {size} devices of the first dimension "
    if nearest in own:
        return f"{scope}are scaled from it"
    stay = "stay as" if nearest == size else f"are scaled from those of {nearest}"
    return f"{scope}{stay} in {'the link' if base is None else base.name}"
