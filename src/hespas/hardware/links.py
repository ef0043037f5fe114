"""Links, and measured times of collectives over them.

A link preset is a file ``hespas/configs/links/<NAME>.json``; its keys are in
docs/reference/network-models.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

from msgspec import Struct, structs

from hespas.base.configs import CONFIGS
from hespas.base.decode import decode, preset_names, read_json
from hespas.base.figures import Count, Fraction, NotNegative, Positive, Text
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, HardwareError
from hespas.hardware.scales import check_latency, check_link_rate

LINKS_DIRECTORY = CONFIGS / "links"


class Protocol(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How messages cross a link.

    It serves up to ``up_to_bytes`` (None: any size). Each message takes ``overhead_s`` more, such
    as the handshake of a rendezvous, and gets ``bandwidth_fraction`` of the bandwidth, as protocols
    that send a flag with every datum do. With ``waits_for_receiver``, a message leaves only when
    its receive is posted.
    """

    name: Text
    up_to_bytes: Count | None
    overhead_s: NotNegative = 0.0
    bandwidth_fraction: Fraction = 1.0
    waits_for_receiver: bool = False


class LinkParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One direction of a link; ``latency_s`` is of one hop.

    ``step_overhead_s`` is the time that each message occupies its sender, one message after the
    other. ``protocols`` are ordered by size, the last for any size. With ``reduces_in_switch`` the
    switches can reduce (SHARP, NVLS). ``pipeline_bytes`` is the piece in which trees forward data
    (None: everything at once).
    """

    bandwidth_bytes_per_s: Positive
    latency_s: NotNegative
    step_overhead_s: NotNegative = 0.0
    protocols: tuple[Protocol, ...] = ()
    reduces_in_switch: bool = False
    pipeline_bytes: Count | None = None

    def protocol(self, size_bytes: int) -> Protocol | None:
        """Return the protocol of a message, if there are any."""
        return _entry_for(self.protocols, size_bytes) if self.protocols else None


class MeasuredCollective(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fit to measurements: ``latency_s + size / bandwidth_bytes_per_s``.

    The size is the whole buffer, an all-gather's output or another collective's input on a rank.
    ``up_to_bytes`` is None for the last fit, which holds for any larger size.
    """

    algorithm: Text
    protocol: Text
    up_to_bytes: Count | None
    latency_s: NotNegative
    bandwidth_bytes_per_s: Positive

    def time_s(self, size_bytes: int) -> float:
        """Return the collective's time on an idle network."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


@frozen
class Link:
    """A link preset, with parameters, measured collectives or both.

    ``collectives`` gives, by kind and by group size, the fits in order of size. The kinds
    all_reduce_one_shot and all_reduce_two_shot are all-reduces by kernels that a compiler writes
    into the program. ``multiprocessors`` are those of a GPU on the link: a channel of a collective
    takes one (None: collectives take none).
    """

    name: str
    source: str
    parameters: LinkParameters | None = None
    multiprocessors: int | None = None
    collectives: Mapping[str, Mapping[int, tuple[MeasuredCollective, ...]]] = field(
        default_factory=dict[str, Mapping[int, tuple[MeasuredCollective, ...]]]
    )

    def measured(self, kind: str, group_size: int, size_bytes: int) -> MeasuredCollective | None:
        """Return a collective's fit, if it was measured."""
        fits = self.collectives.get(kind, {}).get(group_size)
        return None if fits is None else _entry_for(fits, size_bytes)


_Sized = TypeVar("_Sized", Protocol, MeasuredCollective)


def _entry_for(entries: Sequence[_Sized], size_bytes: int) -> _Sized:
    """Return the entry for a size, of ascending ones."""
    limits = [entry.up_to_bytes for entry in entries if entry.up_to_bytes is not None]
    return entries[bisect_left(limits, size_bytes)]


_Kind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "all_reduce_one_shot",
    "all_reduce_two_shot",
]  # fmt: skip


class _LinkFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link's file; group sizes are JSON keys, hence texts.

    ``as_measured_on`` names the preset whose collectives this link's are: one takes as long as one
    there whose size, over its own, is the ratio of the links' bandwidths.
    """

    name: Text
    source: Text
    link: LinkParameters | None = None
    as_measured_on: Text | None = None
    multiprocessors: Count | None = None
    collectives: dict[_Kind, dict[str, tuple[MeasuredCollective, ...]]] = {}


def link_names() -> tuple[str, ...]:
    """Return the names of the link presets, sorted."""
    return preset_names(LINKS_DIRECTORY)


def load_link(name_or_path: str | Path) -> Link:
    """Return a link, a preset by name or a file.

    Raises `HardwareError` for an unknown name and for figures that contradict each other,
    `ConfigError` for an invalid file.
    """
    presets = link_names()
    if isinstance(name_or_path, str) and name_or_path in presets:
        return read_link(LINKS_DIRECTORY / f"{name_or_path}.json")
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and "/" not in name_or_path and not path.is_file():
        message = f"no link preset or file is named {name_or_path!r}"
        raise HardwareError(message, hint=suggestion(name_or_path, presets))
    return read_link(path)


def read_link(path: Path) -> Link:
    """Return the link that a file describes, as `load_link`."""
    location = str(path)
    file = decode(read_json(path), _LinkFile, location=location)
    tables: dict[str, Mapping[int, tuple[MeasuredCollective, ...]]] = {}
    for kind, by_size in file.collectives.items():
        for size, fits in by_size.items():
            if not size.isdecimal() or int(size) < 2:
                raise HardwareError(
                    f"the group size is {size!r}", location=location, hint="give 2 or more"
                )
            place = f"{location}: {kind} of {size}"
            _check_limits([fit.up_to_bytes for fit in fits], place)
            if not fits:
                raise HardwareError(
                    "there is no fit", location=place, hint="add one, or drop the size"
                )
        tables[kind] = MappingProxyType({int(size): fits for size, fits in by_size.items()})
    if file.as_measured_on is not None:
        tables = _as_measured_on(file, location)
    if file.link is None and not any(tables.values()):
        raise HardwareError("the link has neither parameters nor measurements", location=location)
    if file.link is not None:
        check_protocols(file.link, location)
        try:
            check_link(file.link, path="$.link")
        except ConfigError as error:
            error.location = location
            raise
    return Link(
        name=file.name,
        source=file.source,
        parameters=file.link,
        multiprocessors=file.multiprocessors,
        collectives=MappingProxyType(tables),
    )


def _as_measured_on(
    file: _LinkFile, location: str
) -> dict[str, Mapping[int, tuple[MeasuredCollective, ...]]]:
    """Return another link's collectives at this link's bandwidth."""
    place = f"{location}: as_measured_on"
    if file.link is None or file.collectives:
        raise HardwareError(
            "a link as another was measured has parameters, and no collectives of its own",
            location=place,
            hint="give link, and drop collectives",
        )
    name = file.as_measured_on or ""
    if name == file.name or name not in link_names():
        hint = suggestion(name, link_names())
        raise HardwareError(f"no other link preset is named {name!r}", location=place, hint=hint)
    base = load_link(name)
    if base.parameters is None or not base.collectives:
        raise HardwareError(f"{name} has no measured collectives", location=place)
    ratio = file.link.bandwidth_bytes_per_s / base.parameters.bandwidth_bytes_per_s
    return {
        kind: MappingProxyType({
            size: tuple([_scaled(fit, ratio) for fit in fits])
            for size, fits in by_size.items()
        })
        for kind, by_size in base.collectives.items()
    }  # fmt: skip


def _scaled(fit: MeasuredCollective, ratio: float) -> MeasuredCollective:
    limit = fit.up_to_bytes
    return structs.replace(
        fit,
        up_to_bytes=None if limit is None else max(1, round(limit * ratio)),
        bandwidth_bytes_per_s=fit.bandwidth_bytes_per_s * ratio,
    )


def check_link(parameters: LinkParameters, *, path: str) -> None:
    """Raise `ConfigError` for figures of a link in other units.

    ``path`` is the JSON path of the link.
    """
    check_link_rate(parameters.bandwidth_bytes_per_s, path=f"{path}.bandwidth_bytes_per_s")
    check_latency(parameters.latency_s, path=f"{path}.latency_s")
    check_latency(parameters.step_overhead_s, path=f"{path}.step_overhead_s")


def check_protocols(parameters: LinkParameters, location: str) -> None:
    """Raise `HardwareError` unless protocols ascend and cover any size."""
    limits = [protocol.up_to_bytes for protocol in parameters.protocols]
    _check_limits(limits, f"{location}: protocols")


def _check_limits(limits: list[int | None], location: str) -> None:
    """Raise `HardwareError` unless sizes ascend and end with None."""
    sizes = [limit for limit in limits if limit is not None]
    if limits and limits != [*sorted(set(sizes)), None]:
        hint = "let up_to_bytes ascend, and give null for the last"
        raise HardwareError(f"up_to_bytes is {limits}", location=location, hint=hint)
