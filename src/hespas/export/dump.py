"""Export from a directory that XLA dumped into, as ``xla_dump_to`` and MaxText make them.

XLA names files ``module_0003.jit_train_step.PASS.txt``, where PASS is ``before_optimizations`` or
holds the passes between which a module was dumped; protos end in ``.hlo.pb``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hespas.config.suggest import suggestion
from hespas.errors import ConfigError, ProgramError
from hespas.export.exported import Exported
from hespas.frontend.load import read_source
from hespas.xla.hlo.module import read_hlo_module, stablehlo_of_hlo

_FILE = re.compile(r"module_(\d+)\.(.+?)\.((?:\d{4}\.|before_|after_|[a-z]+_gpu_|cpu_).*)")
_SUFFIXES = (".hlo.pb", ".txt")
_PARTITIONED = re.compile(r"after_spmd[-_]partition(ing|er)\b")
_BEFORE = re.compile(r"^before_optimizations$")
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedModule:
    """A module as it was at one point of its compilation."""

    number: int
    name: str
    stage: str
    path: Path


def dumped_modules(directory: Path) -> tuple[DumpedModule, ...]:
    """Return the modules dumped into a directory; protos rather than text of the same."""
    found: dict[tuple[int, str, str], DumpedModule] = {}
    for path in sorted(directory.iterdir()):
        suffix = next((each for each in _SUFFIXES if path.name.endswith(each)), None)
        match = suffix and _FILE.fullmatch(path.name.removesuffix(suffix))
        if not match:
            continue
        number, name, stage = int(match[1]), match[2], match[3]
        module = DumpedModule(number=number, name=name, stage=stage, path=path)
        found.setdefault((number, name, stage), module)
    return tuple(found.values())


def export_dump(directory: Path, *, module: str | None = None) -> Exported:
    """Export the module after partitioning where it was dumped, else the one before it.

    ``module`` is a part of the module's name, for dumps of several. Raises `ConfigError` where
    it leaves none or several, and `ProgramError` where neither pass was dumped, naming those
    that were.
    """
    modules = dumped_modules(directory)
    if not modules:
        raise ProgramError(
            "there are no modules of XLA in this directory",
            location=str(directory),
            hint="dump with XLA_FLAGS=--xla_dump_to=DIRECTORY --xla_dump_hlo_as_text",
        )
    chosen = _of_one(modules, module, str(directory))
    for stage, done in ((_PARTITIONED, True), (_BEFORE, False)):
        fitting = [each for each in chosen if stage.search(each.stage)]
        if fitting:
            return _exported(fitting[-1], partitioned=done)
    stages = sorted({each.stage for each in chosen})
    raise ProgramError(
        "neither the module after spmd-partitioning nor that before optimisation is there; "
        f"there are {', '.join(stages[:_SHOWN])}{' ...' if len(stages) > _SHOWN else ''}",
        location=str(directory),
        hint="dump with --xla_dump_hlo_pass_re=spmd-partitioning",
    )


def _of_one(
    modules: Sequence[DumpedModule], wanted: str | None, location: str
) -> list[DumpedModule]:
    names = {each.name for each in modules}
    fitting = {name for name in names if wanted is None or wanted in name}
    exact = {name for name in fitting if name == wanted} or fitting
    if not exact:
        raise ConfigError(
            f"no module is named {wanted!r}",
            location=location,
            hint=suggestion(wanted or "", names),
        )
    if len(exact) > 1:
        raise ConfigError(
            f"{len(exact)} modules were dumped: {', '.join(sorted(exact)[:_SHOWN])}",
            location=location,
            hint="choose one with --module",
        )
    one = [each for each in modules if each.name in exact]
    last = max(each.number for each in one)
    return [each for each in one if each.number == last]


def _exported(module: DumpedModule, *, partitioned: bool) -> Exported:
    source, name = read_source(module.path), str(module.path)
    hlo = read_hlo_module(source, name=name)
    devices = (hlo.replicas or 1) * (hlo.partitions or 1)
    note = f"exported from XLA's dump of {module.name} at {module.stage}"
    return Exported(
        text=stablehlo_of_hlo(source, name=name),
        name=name,
        devices=devices,
        notes=(note,),
        is_partitioned=partitioned,
    )
