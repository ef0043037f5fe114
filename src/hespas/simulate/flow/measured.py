"""Scale a link's measured collectives to any group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import log2

from hespas.base.frozen import frozen
from hespas.hardware.links import Link, MeasuredCollective


@frozen
class Measured:
    """A collective's measured time on an idle network.

    ``moved_bytes``, which a ring would move over each link, stands for the load of the links.
    """

    name: str
    latency_s: float
    transfer_s: float
    moved_bytes: float
    notes: tuple[str, ...]


def measured(link: Link, kind: str, members: int, size_bytes: int) -> Measured | None:
    """Return a collective's measured time, if a link has tables.

    ``size_bytes`` is one rank's input. Groups of a size that wasn't measured are scaled from the
    nearest one: the latency by the steps of the algorithm, the bandwidth by the share of the buffer
    that each link carries.
    """
    sizes = link.collectives.get(kind, {})
    if not sizes:
        return None
    nearest = nearest_size(sizes, members)
    buffer_bytes = size_bytes * members if kind == "all_gather" else size_bytes
    fit = link.measured(kind, nearest, buffer_bytes)
    if fit is None:
        return None
    slower = _steps(fit, members) / _steps(fit, nearest)
    share = bus_factor(kind, members) / bus_factor(kind, nearest)
    return Measured(
        name=f"{_fit_name(fit)} on {link.name}",
        latency_s=fit.latency_s * slower,
        transfer_s=buffer_bytes / fit.bandwidth_bytes_per_s * share,
        moved_bytes=buffer_bytes * bus_factor(kind, members),
        notes=tuple(_notes(link, kind, members, nearest)),
    )


def _notes(link: Link, kind: str, members: int, nearest: int) -> Iterator[str]:
    source = link.source.partition(";")[0]
    if source:
        yield f"{link.name} is {source}"
    if nearest != members:
        yield f"{link.name}: {kind} among {members} is scaled from the measurement among {nearest}"


def nearest_size(sizes: Iterable[int], members: int) -> int:
    """Return the nearest size by ratio, the smaller of two.

    >>> nearest_size([2, 4, 8], 6), nearest_size([2, 8], 4)
    (8, 2)
    """
    return min(sizes, key=lambda size: (abs(log2(size / members)), size))


def bus_factor(kind: str, members: int) -> float:
    """Return the buffer's share that a ring's link moves.

    In one shot each device reads the whole buffer of each other one.
    Source: nccl-tests, doc/PERFORMANCE.md.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("send_recv", 2)
    (1.5, 0.75, 1.0)
    """
    share = (members - 1) / members
    factors = {
        "all_reduce": 2 * share,
        "all_reduce_one_shot": members - 1.0,
        "all_reduce_two_shot": 2 * share,
        "send_recv": 1.0,
    }
    return factors.get(kind, share)


def _fit_name(fit: MeasuredCollective) -> str:
    """Name a collective's algorithm, which the user's measurements may lack."""
    has_names = fit.algorithm != "measured" or fit.protocol != "measured"
    return f"measured {fit.algorithm} ({fit.protocol})" if has_names else "measured"


def _steps(fit: MeasuredCollective, members: int) -> float:
    """Return a number proportional to an algorithm's steps."""
    name = fit.algorithm.lower()
    if any(word in name for word in ("nvls", "sharp", "switch", "collnet")):
        return 1
    return log2(members) if "tree" in name else members - 1
