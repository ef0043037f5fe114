"""Our counts of compiled programs against XLA's HloCostAnalysis: kernel by kernel, and in all.

Left out is what it counts otherwise: a custom call, of which it knows nothing, is -1, and the
sums of a reduce-scatter are 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hespas.frontend.load import load_source
from hespas.frontend.overrides import LoadOptions
from hespas.program.program import Op, Program, nested_ops
from hespas.program.work import Work, summed
from hespas.work.expand import Leaf, expand, leaves, total
from hespas.xla.hlo.module import read_hlo_module
from hespas.xla.hlo.schema import message_class
from live_costs import without_loops
from workloads import workload
from xla_costs import hlo_proto_cost

_WORKLOADS = ("llama3_100m_h100_4.hlo", "llama8b_h100_64.scan.hlo", "tiny_h100_8.cublas.hlo")


def _fused_names() -> list[str]:
    source = (Path(__file__).parent / "programs" / "export_programs.py").read_text()
    listed = re.search(r"FUSED = \((.*?)\)", source, re.DOTALL)
    assert listed
    return re.findall(r'"(\w+)"', listed[1])


def _once(program: Program) -> list[Leaf]:
    costs = expand(program.main.body.operations, program.functions)
    return list(leaves(without_loops(costs)))


@pytest.mark.parametrize("name", _fused_names())
def test_programs_compiled_for_the_cpu_agree_exactly(name: str, exported: Path) -> None:
    proto = (exported / f"{name}.fused.hlo.pb").read_bytes()
    program = load_source(proto, name=name, options=LoadOptions(trip_counts={"": 1}))
    theirs = hlo_proto_cost(proto)

    ours = summed(leaf.work for leaf in _once(program))

    assert program.is_scheduled
    assert (ours.total_flops, ours.transcendentals) == (theirs.flops, theirs.transcendentals)


@pytest.mark.parametrize("name", _WORKLOADS)
def test_programs_compiled_for_gpus_agree_but_for_rounding(name: str) -> None:
    source = workload(name)
    proto = read_hlo_module(source, name=name).message.SerializeToString()
    theirs = hlo_proto_cost(proto)
    leaves = _once(load_source(source, name=name))
    calls = [leaf for leaf in leaves if leaf.op.kind == "custom_call"]
    counted = [leaf for leaf in leaves if leaf.op.kind not in ("custom_call", "reduce_scatter")]

    ours = summed(leaf.work for leaf in counted)

    assert ours.total_flops == pytest.approx(theirs.flops + len(calls), rel=1e-4)
    assert ours.transcendentals == pytest.approx(theirs.transcendentals + len(calls), rel=1e-4)


def _fusion_modules(message: Any) -> Iterator[tuple[str, bytes]]:
    """Yield each fusion's name, and a module that runs its body and nothing else."""
    computations = {each.id: each for each in message.computations}
    for computation in message.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "fusion":
                body = computations[instruction.called_computation_ids[0]]
                alone = message_class("xla.HloModuleProto")(
                    name=body.name,
                    entry_computation_name=body.name,
                    entry_computation_id=body.id,
                    host_program_shape=body.program_shape,
                )
                alone.computations.extend(_called_first(body, computations))
                yield instruction.name, alone.SerializeToString()


def _called_first(body: Any, computations: dict[int, Any]) -> list[Any]:
    found: dict[int, Any] = {}
    for instruction in body.instructions:
        for number in instruction.called_computation_ids:
            inner = _called_first(computations[number], computations)
            found.update({each.id: each for each in inner})
    return [*found.values(), body]


def _body_work(fusion: Op) -> Work:
    return total(expand(fusion.regions[0].operations))


@pytest.mark.parametrize("name", _WORKLOADS)
def test_every_distinct_fusion_agrees_exactly(name: str) -> None:
    source = workload(name)
    program = load_source(source, name=name)
    fusions = {op.instruction: op for op in nested_ops(program.main.body) if op.kind == "fusion"}
    distinct = {op.regions[0]: op.instruction for op in fusions.values()}
    message = read_hlo_module(source, name=name).message
    alone = dict(_fusion_modules(message))

    differing: list[str] = []
    for instruction in distinct.values():
        ours, theirs = _body_work(fusions[instruction]), hlo_proto_cost(alone[instruction])
        # XLA adds up in single precision: within 24 bits of the sum.
        agrees = ours.total_flops == pytest.approx(theirs.flops, rel=2**-22)
        if not agrees or ours.transcendentals != theirs.transcendentals:
            differing.append(f"{instruction}: {ours.total_flops} against {theirs.flops}")
    assert len(distinct) > 50
    assert differing == []
