"""What holds of every program, each as a function that says what is wrong; "" for nothing."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hespas import api
from hespas.base.units import PS_PER_S
from hespas.frontend.load import load_source
from hespas.frontend.overrides import LoadOptions
from hespas.memory.usage import memory_use
from hespas.prediction.result import Prediction
from hespas.program.program import Program
from hespas.tasks.graph import CollectiveTask
from hespas.work.expand import Cost, leaves, total
from hespas.xla.hlo.module import read_hlo_module
from live_costs import live_costs
from random_programs.compilers import (
    NODE,
    Compiled,
    compiled_for_cpu,
    compiled_for_gpus,
    per_device,
)
from random_programs.grammar import Drawn
from xla_costs import HloCost, hlo_proto, hlo_proto_cost, stablehlo_of_hlo

Law = Callable[[Drawn], str]

_ONE_ROUND = LoadOptions(trip_counts={"": 1})
_SYSTEM = "H100_80GB_4GPU"
_SMALL_BYTES = 4096
"""Below it, a compiler's tables and alignment are a large part of what a program needs."""
_TABLE_BYTES = 256
"""XLA gives each tuple a table of pointers, as far from others as all its buffers are."""
_TUPLE = 13
"""The number of tuples among the element types of ``xla_data.proto``."""
_KINDS = frozenset({"ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL"})
_NESTED = frozenset({"while", "conditional"})


def predicted(content: str | bytes, fidelity: str, *, name: str, communicates: bool) -> Prediction:
    """Predict a program as a file's content, as ``hespas run`` does."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return api.predict(
            file,
            NODE,
            _SYSTEM if communicates else None,
            fidelity=fidelity,
            disable_cache=True,
        )


def stages(drawn: Drawn) -> str:
    """As exported and fused, a program is answered, and its parts add up."""
    per_device(drawn)
    found: dict[str, Prediction] = {}
    for fidelity in ("exported", "fused"):
        found[fidelity] = predicted(
            drawn.text, fidelity, name="step.mlir", communicates=drawn.devices > 1
        )
        fault = _parts(found[fidelity])
        if fault:
            return f"{fidelity}: {fault}"
    moved = {fidelity: _moved_bytes(one) for fidelity, one in found.items()}
    exported, fused = (_reduced_alike(each) for each in (moved["exported"], moved["fused"]))
    if exported != fused:
        return f"fused programs move {moved['fused']}, exported ones {moved['exported']}"
    return ""


def _reduced_alike(moved: Mapping[str, int]) -> Counter[str]:
    """Return what is moved; fused programs scatter sums of which each device keeps a part."""
    joined: Counter[str] = Counter()
    for kind, count in moved.items():
        joined["ALL_REDUCE" if kind == "REDUCE_SCATTER" else kind] += count
    return joined


def _parts(one: Prediction) -> str:
    estimate = one.estimates.total
    timeline = one.timeline
    parts = estimate.duration_ps
    if timeline is not None:
        specified = timeline.specified
        parts += specified.exposed_communication_ps + specified.exposed_host_transfer_ps
        parts += timeline.straggler_ps
    step_ps = round(one.step_time_s * PS_PER_S)
    operations = sum(each.count for each in estimate.per_op.values())
    # Each operation is rounded by itself, and so is each region.
    if abs(parts - step_ps) > operations + len(one.graph.regions):
        return f"parts are {parts} ps, the step takes {step_ps} ps"
    priced = [each for each in one.estimates.estimate_of_region if each is not None]
    regions = sum(each.duration_ps for each in priced)
    if abs(regions - estimate.duration_ps) > len(one.graph.regions):
        return f"regions take {regions} ps, all together {estimate.duration_ps} ps"
    return ""


def _moved_bytes(one: Prediction) -> dict[str, int]:
    """Return the bytes that collectives move, by kind."""
    moved: Counter[str] = Counter()
    for task in one.tasks.tasks:
        if isinstance(task, CollectiveTask):
            moved[task.kind.name] += task.size_bytes
    return dict(moved)


def counts(drawn: Drawn) -> str:
    """FLOPs and transcendental functions are those of XLA's HloCostAnalysis."""
    proto = hlo_proto(per_device(drawn))
    converted = load_source(stablehlo_of_hlo(proto), name="converted", options=_ONE_ROUND)
    direct = load_source(proto, name="direct", options=_ONE_ROUND)
    theirs = hlo_proto_cost(proto)
    return _difference(converted, theirs) or _difference(direct, theirs)


def _difference(program: Program, theirs: HloCost) -> str:
    costs = live_costs(program)
    flops = total(costs).total_flops - _scattered_sums(costs)
    transcendentals = total(costs, choose=lambda work: work.transcendentals).transcendentals
    # XLA adds in single precision.
    off = max(abs(flops - theirs.flops), abs(transcendentals - theirs.transcendentals))
    if off <= 1e-6 * max(theirs.flops, theirs.transcendentals):
        return ""
    return (
        f"{flops} FLOPs and {transcendentals} functions, "
        f"XLA counts {theirs.flops:.0f} and {theirs.transcendentals:.0f}"
    )


def _scattered_sums(costs: tuple[Cost, ...]) -> int:
    """Return the sums of reduce-scatters, which XLA does not count."""
    scattered = [leaf for leaf in leaves(costs) if leaf.op.kind == "reduce_scatter"]
    return sum(leaf.work.total_flops for leaf in scattered)


def compiled_counts(drawn: Drawn) -> str:
    """The same of a program that is compiled for this machine, with its fusions."""
    compiled = compiled_for_cpu(drawn)
    program = load_source(compiled.proto, name="compiled", options=_ONE_ROUND)
    return _difference(program, hlo_proto_cost(compiled.proto)) or _fixed_memory(program, compiled)


def _fixed_memory(program: Program, compiled: Compiled) -> str:
    """Arguments, and outputs that are written over them, are to the byte what the compiler says."""
    use = memory_use(program)
    ours = (use.argument_bytes, use.alias_bytes)
    theirs = (compiled.memory.argument_bytes, compiled.memory.alias_bytes)
    if ours != theirs:
        return f"arguments and aliases of {ours} bytes, the compiler says {theirs}"
    return ""


def compiled_for_a_gpu(drawn: Drawn) -> str:
    """Compiled for GPUs: with the collectives that are left, and the memory that XLA says."""
    compiled = compiled_for_gpus(drawn)
    program = load_source(compiled.proto, name="compiled", options=_ONE_ROUND)
    fault = _fixed_memory(program, compiled) or _needed(program, compiled)
    if fault:
        return fault
    communicates = drawn.devices > 1
    one = predicted(compiled.proto, "auto", name="step.pb", communicates=communicates)
    fault = _parts(one)
    if fault:
        return f"compiled: {fault}"
    exported = predicted(drawn.text, "exported", name="step.mlir", communicates=communicates)
    return _collectives(compiled, _moved_bytes(one), _moved_bytes(exported))


def _collectives(compiled: Compiled, moved: Mapping[str, int], exported: Mapping[str, int]) -> str:
    """A compiler drops collectives of what is known or unused, joins others, and adds small ones.

    Without loops and branches, the kinds that are left are those of the instructions.
    """
    if sum(moved.values()) > sum(exported.values()) + _SMALL_BYTES:
        return f"compiled programs move {moved}, exported ones {exported}"
    opcodes = {each.opcode for each in _all(compiled)}
    kinds = {opcode.removesuffix("-start").replace("-", "_").upper() for opcode in opcodes}
    left = kinds & _KINDS
    if opcodes.isdisjoint(_NESTED) and left != set(moved):
        return f"compiled programs hold {sorted(left)}, and move {moved}"
    return ""


def _all(compiled: Compiled) -> Iterator[Any]:
    """Yield the instructions of a compiled module."""
    module = read_hlo_module(compiled.proto, name="compiled").message
    return (each for computation in module.computations for each in computation.instructions)


def _needed(program: Program, compiled: Compiled) -> str:
    ours = memory_use(program).peak_bytes
    theirs = compiled.memory.total_bytes - compiled.memory.generated_code_bytes
    tables_bytes = _TABLE_BYTES * sum(each.shape.element_type == _TUPLE for each in _all(compiled))
    if abs(ours - theirs) > 0.05 * theirs + _SMALL_BYTES + tables_bytes:
        return f"{ours} bytes are needed, the compiler says {theirs}"
    return ""


LAWS: dict[str, Law] = {"stages": stages, "counts": counts, "compiled": compiled_counts}
GPU_LAWS: dict[str, Law] = {"compiled for a GPU": compiled_for_a_gpu}
"""These take the compiler of GPUs."""
