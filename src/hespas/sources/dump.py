"""Export from a directory of XLA's dumps.

XLA names files ``module_0003.jit_train_step.PASS.txt``, where PASS is ``before_optimizations`` or
holds the passes between which a module was dumped; protos end in ``.hlo.pb``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, ProgramError, option
from hespas.frontend.load import read_source
from hespas.sources.exported import Exported
from hespas.xla.hlo.module import read_hlo_module, stablehlo_of_module

_FILE = re.compile(r"module_(\d+)\.(.+?)\.((?:\d{4}\.|before_|after_|[a-z]+_gpu_|cpu_).*)")
_SUFFIXES = (".hlo.pb", ".txt")
_PARTITIONED = re.compile(r"after_spmd[-_]partition(ing|er)\b")
_BEFORE = re.compile(r"^before_optimizations$")
_SHOWN = 8


@frozen
class DumpedModule:
    """A module at one point of its compilation."""

    number: int
    name: str
    stage: str
    path: Path


def dumped_modules(directory: Path) -> tuple[DumpedModule, ...]:
    """Return the modules of a directory, protos before texts."""
    modules: dict[tuple[int, str, str], DumpedModule] = {}
    for path in sorted(directory.iterdir()):
        suffix = next((ending for ending in _SUFFIXES if path.name.endswith(ending)), None)
        match = suffix and _FILE.fullmatch(path.name.removesuffix(suffix))
        if not match:
            continue
        number, name, stage = int(match[1]), match[2], match[3]
        module = DumpedModule(number=number, name=name, stage=stage, path=path)
        modules.setdefault((number, name, stage), module)
    return tuple(modules.values())


def export_dump(directory: Path, *, module: str | None = None) -> Exported:
    """Export the partitioned module, else the unoptimised one.

    ``module`` is a part of the module's name, for dumps of several. Raises `ConfigError` if it
    matches none or several, and `ProgramError`, naming the dumped stages, if neither stage was
    dumped.
    """
    modules = dumped_modules(directory)
    if not modules:
        raise ProgramError(
            "there are no modules of XLA in this directory",
            location=str(directory),
            hint="dump with XLA_FLAGS=--xla_dump_to=DIRECTORY --xla_dump_hlo_as_text; that of a "
            "model has its config.json",
        )
    compilation = _last_compilation(modules, module, str(directory))
    for stage, is_partitioned in ((_PARTITIONED, True), (_BEFORE, False)):
        fitting = [dumped for dumped in compilation if stage.search(dumped.stage)]
        if fitting:
            return _export_module(fitting[-1], is_partitioned=is_partitioned)
    stages = sorted({dumped.stage for dumped in compilation})
    raise ProgramError(
        "neither the module after spmd-partitioning nor that before optimisation is there; "
        f"there are {', '.join(stages[:_SHOWN])}{' ...' if len(stages) > _SHOWN else ''}",
        location=str(directory),
        hint="dump with --xla_dump_hlo_pass_re=spmd-partitioning",
    )


def _last_compilation(
    modules: Sequence[DumpedModule], part: str | None, location: str
) -> list[DumpedModule]:
    names = {dumped.name for dumped in modules}
    matching = {name for name in names if part is None or part in name}
    chosen_names = {name for name in matching if name == part} or matching
    if not chosen_names:
        raise ConfigError(
            f"no module is named {part!r}", location=location, hint=suggestion(part or "", names)
        )
    if len(chosen_names) > 1:
        raise ConfigError(
            f"{len(chosen_names)} modules were dumped: {', '.join(sorted(chosen_names)[:_SHOWN])}",
            location=location,
            hint=f"choose one with {option('module')}",
        )
    compilations = [dumped for dumped in modules if dumped.name in chosen_names]
    last = max(dumped.number for dumped in compilations)
    return [dumped for dumped in compilations if dumped.number == last]


def _export_module(module: DumpedModule, *, is_partitioned: bool) -> Exported:
    source, name = read_source(module.path), str(module.path)
    hlo = read_hlo_module(source, name=name)
    devices = (hlo.replicas or 1) * (hlo.partitions or 1)
    note = f"exported from XLA's dump of {module.name} at {module.stage}"
    return Exported(
        content=stablehlo_of_module(hlo, name=name),
        name=name,
        devices=devices,
        notes=(note,),
        is_partitioned=is_partitioned,
    )
