"""How libtpu runs collectives on slices of TPUs, as it writes beside them in compiled programs.

    python validation/tpu_collectives.py

Each program is one collective of 32 MB in bf16 among all chips of a slice, or among those along one
of its axes. The table says which strategy or emitter the compiler names, with the number of parts
of the data that go different ways and of phases, and how long hespas takes the same collective to
last, as the presets say and along one axis after the other. Needs hespas[tpu].
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from hespas.base.home import cache_home
from hespas.compile.cache import CompiledCache
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout
from hespas.hardware.sized import find_system
from hespas.hardware.system import interconnect_of
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow
from hespas.tasks.graph import CollectiveTask, TaskGraph

SIZE_BYTES = 32 * 2**20
_COLUMNS = 1024
_CONFIG = re.compile(r'"collective_algorithm_config":\{"emitter":"(\w+)"(?:,"strategy":"(\w+)")?')
_PARTS = re.compile(r"colors:(\d+) phases:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A collective on a slice; ``axis`` is the one along which its groups are, None for all."""

    system: str
    kind: CollectiveKind
    axis: int | None = None

    @property
    def sides(self) -> tuple[int, ...]:
        """The chips along each axis."""
        return tuple(int(side) for side in self.system.partition("_")[2].split("x"))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of devices, numbered along the first axis first."""
        count = prod(self.sides)
        if self.axis is None:
            return (tuple(range(count)),)
        stride, size = prod(self.sides[: self.axis]), self.sides[self.axis]
        firsts = [one for one in range(count) if one // stride % size == 0]
        return tuple(tuple(first + at * stride for at in range(size)) for first in firsts)


ALL_REDUCE, ALL_GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
REDUCE_SCATTER = CollectiveKind.REDUCE_SCATTER
KINDS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
CASES = tuple(
    Case(system=system, kind=kind)
    for system in (
        "TPUv5e_2x2",
        "TPUv6e_2x4",
        "TPUv5e_4x4",
        "TPUv6e_8x16",
        "TPUv5e_16x16",
        "TPUv5p_2x2x1",
        "TPUv5p_2x4x4",
        "TPUv5p_4x4x4",
    )
    for kind in KINDS
) + tuple(
    Case(system=system, kind=kind, axis=1)
    for system in ("TPUv5e_4x4", "TPUv5e_16x16", "TPUv5p_4x4x4")
    for kind in KINDS
)


def program(case: Case) -> str:
    """Return a case as StableHLO, for as many replicas as there are devices."""
    groups = case.groups
    members = len(groups[0])
    whole = SIZE_BYTES // 2 // _COLUMNS
    rows = whole // members if case.kind is ALL_GATHER else whole
    result = whole // members if case.kind is REDUCE_SCATTER else whole
    listed = ", ".join(str(list(group)) for group in groups)
    head = f"replica_groups = dense<[{listed}]> : tensor<{len(groups)}x{members}xi64>"
    channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
    region = (
        "({\n^bb0(%a: tensor<bf16>, %b: tensor<bf16>):\n"
        "%s = stablehlo.add %a, %b : tensor<bf16>\nstablehlo.return %s : tensor<bf16>\n})"
    )
    match case.kind:
        case CollectiveKind.ALL_GATHER:
            name, body, more = "all_gather", "", ", all_gather_dim = 0 : i64"
        case CollectiveKind.REDUCE_SCATTER:
            name, body, more = "reduce_scatter", region, ", scatter_dimension = 0 : i64"
        case _:
            name, body, more = "all_reduce", region, ""
    before, after = (f"tensor<{count}x{_COLUMNS}xbf16>" for count in (rows, result))
    return (
        f"module @collective attributes {{mhlo.num_replicas = {prod(case.sides)} : i32, "
        "mhlo.num_partitions = 1 : i32} {\n"
        f"func.func public @main(%x: {before}) -> {after} {{\n"
        f'%y = "stablehlo.{name}"(%x) <{{{head}, {channel}, use_global_device_ids{more}}}> {body} '
        f": ({before}) -> {after}\nreturn %y : {after}\n}}\n}}\n"
    )


def written(case: Case) -> str:
    """Return what libtpu writes beside the collective."""
    compiled = compile_program(
        program(case).encode(),
        name=f"{case.system} {case.kind.name}",
        target=case.system.partition("_")[0],
        layout=Layout(devices=prod(case.sides), topology=case.system.partition("_")[2]),
        cache=CompiledCache(directory=cache_home() / "compiled"),
    )
    found: list[str] = []
    for line in compiled.hlo_text.splitlines():
        config = _CONFIG.search(line)
        if config is None:
            continue
        parts = _PARTS.search(line)
        is_whole = " all-reduce(" in line and case.kind is not ALL_REDUCE
        text = config[2] or config[1]
        if parts is not None:
            text += f", {parts[1]} x {parts[2]}"
        found.append(f"all-reduce and slice: {text}" if is_whole else text)
    return "; ".join(dict.fromkeys(found)) or "nothing"


def time_us(case: Case, algorithm: str) -> float:
    """Return how long hespas' network model takes for it."""
    members = len(case.groups[0])
    network = interconnect_of(find_system(case.system))
    task = CollectiveTask(
        id=1,
        name="collective",
        depends_on=(),
        kind=case.kind,
        size_bytes=SIZE_BYTES // (members if case.kind is ALL_GATHER else 1),
        group_table=0,
    )
    graph = TaskGraph(
        name="collective",
        device_count=network.device_count,
        tasks=(task,),
        group_tables=(case.groups,),
    )
    return simulate_flow(graph, network, algorithm=algorithm).finish_ps / 1e6


def table() -> str:
    """Return the table as Markdown."""
    lines = [
        "| slice | collective | libtpu 0.0.42 writes | as the preset | one axis after the other |",
        "|---|---|---|---|---|",
    ]
    for case in CASES:
        where = "all chips" if case.axis is None else f"axis of {case.sides[case.axis]}"
        name = case.kind.name.lower().replace("_", "-")
        own, axes = time_us(case, "specified"), time_us(case, "hierarchical")
        cells = [f"`{case.system}`", f"{name}, {where}", written(case)]
        lines.append(f"| {' | '.join([*cells, f'{own:.0f} us', f'{axes:.0f} us'])} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    print(table())


if __name__ == "__main__":
    main()
