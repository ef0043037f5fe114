"""Our counts against XLA's HloCostAnalysis, on programs of every kind.

Both count the same HLO: a program is converted to HLO, which folds what it can, and what came
out is counted by XLA and, converted back, by us. XLA counts only what a result depends on, a
loop's condition and body once, and for each figure the branch that has most of it;
so do we here. docs/evidence/operation-counts.md lists every difference that remains.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from hespas.errors import HespasError
from hespas.frontend.load import load_program, load_source
from hespas.frontend.overrides import LoadOptions
from hespas.program.program import Op, Program, Value, nested_ops
from hespas.program.text import function_text, module_text
from hespas.work.expand import expand, total
from live_costs import live_costs
from workloads import published, workload
from xla_costs import HloCost, hlo_cost_analysis, hlo_proto, hlo_proto_cost, stablehlo_of_hlo

_ROOT = Path(__file__).parents[2]
_PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
_ANY_TRIP_COUNT = LoadOptions(trip_counts={"": 1})


def _program_names() -> list[str]:
    """Read the names off the sources: importing them would start JAX in this process."""
    texts = [path.read_text() for path in _PROGRAMS]
    registered = re.compile(r"^@program\(.*\n+def (\w+)", re.MULTILINE)
    return [name for text in texts for name in registered.findall(text)]


def _fused_names() -> list[str]:
    source = next(path for path in _PROGRAMS if path.name == "export_programs.py").read_text()
    listed = re.search(r"FUSED = \((.*?)\)", source, re.DOTALL)
    assert listed
    return re.findall(r'"(\w+)"', listed[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """FLOPs and transcendental functions."""

    flops: int
    transcendentals: int


@lru_cache(maxsize=1)
def _listed_differences() -> dict[str, tuple[Counts, Counts]]:
    """Read the table of docs/evidence/operation-counts.md: our counts beside those of XLA."""
    text = (_ROOT / "docs" / "evidence" / "operation-counts.md").read_text()
    number = r"([\d,]+)"
    row = rf"^\| `(\w+)` \| {number} \| {number} \| {number} \| {number} \|"
    listed: dict[str, tuple[Counts, Counts]] = {}
    for name, *figures in re.findall(row, text, re.MULTILINE):
        ours, theirs, our_functions, their_functions = (int(f.replace(",", "")) for f in figures)
        listed[name] = (
            Counts(flops=ours, transcendentals=our_functions),
            Counts(flops=theirs, transcendentals=their_functions),
        )
    return listed


def _our_counts(program: Program) -> Counts:
    costs = live_costs(program)
    return Counts(
        flops=total(costs).total_flops,
        transcendentals=total(costs, choose=lambda work: work.transcendentals).transcendentals,
    )


def _their_counts(cost: HloCost) -> Counts:
    return Counts(flops=int(cost.flops), transcendentals=int(cost.transcendentals))


def _printed(program: Program) -> str:
    """Print a program as we read it: CHLO legalised, shard_map opened."""
    functions = [
        function_text(
            name,
            function.body.arguments,
            function.body.operations[:-1],
            function.results,
            visibility="public" if name == "main" else "private",
        )
        for name, function in program.functions.items()
    ]
    return module_text("".join(functions))


@pytest.mark.parametrize("name", _program_names())
def test_counts_agree_or_the_difference_is_listed(name: str, exported: Path) -> None:
    proto = hlo_proto(_printed(load_program(exported / f"{name}.mlir")), name=name)
    read_back = load_source(stablehlo_of_hlo(proto), name=name, options=_ANY_TRIP_COUNT)

    ours, theirs = _our_counts(read_back), _their_counts(hlo_proto_cost(proto))

    listed = _listed_differences().get(name)
    if listed is None:
        assert ours == theirs
    else:
        assert ours != theirs, "docs/evidence/operation-counts.md lists a difference that is gone"
        assert (ours, theirs) == listed


@pytest.mark.parametrize("name", _program_names())
def test_hlo_counts_as_the_stablehlo_that_it_is_converted_to(name: str, exported: Path) -> None:
    proto = hlo_proto(_printed(load_program(exported / f"{name}.mlir")), name=name)
    converted = load_source(stablehlo_of_hlo(proto), name=name, options=_ANY_TRIP_COUNT)

    direct = load_source(proto, name=name, options=_ANY_TRIP_COUNT)

    assert _our_counts(direct) == _our_counts(converted)


def test_every_listed_difference_is_of_a_program_that_exists() -> None:
    assert set(_listed_differences()) <= set(_program_names())


def test_the_documented_number_of_programs_is_right() -> None:
    text = (_ROOT / "docs" / "evidence" / "operation-counts.md").read_text()
    exact = len(_program_names()) - len(_listed_differences())
    assert f"{len(_program_names())} programs, {exact} of them exactly" in text


@pytest.mark.parametrize("name", _fused_names())
def test_fusions_agree_with_xla(name: str, exported: Path) -> None:
    proto = (exported / f"{name}.fused.hlo.pb").read_bytes()
    program = load_source(stablehlo_of_hlo(proto, name=name), name=name, options=_ANY_TRIP_COUNT)
    assert any(op.kind == "fusion" for op in program.main.body.operations)

    assert _our_counts(program) == _their_counts(hlo_proto_cost(proto))


# XLA charges a gather or a scatter in a fusion for its whole table.
_TABLES = frozenset({"embedding_gradient", "gathers", "scatters"})


@pytest.mark.parametrize("name", [name for name in _fused_names() if name not in _TABLES])
def test_bytes_of_fusions_are_near_xla(name: str, exported: Path) -> None:
    proto = (exported / f"{name}.fused.hlo.pb").read_bytes()
    program = load_source(stablehlo_of_hlo(proto, name=name), name=name, options=_ANY_TRIP_COUNT)
    theirs = hlo_proto_cost(proto).bytes_accessed

    ours = total(live_costs(program), choose=lambda work: work.bytes_moved).bytes_moved

    # XLA also counts the constants that stand in the fusion's own code, a few bytes each.
    assert 0.9 * theirs <= ours <= theirs


def _example(name: str) -> bytes:
    return (_ROOT / "examples" / name).read_bytes()


_WORKLOADS: dict[str, Callable[[str], bytes]] = {
    "llama3_100m_fsdp4.mlir": _example,
    "attention_block.mlir": _example,
    "tiny_8dev_fsdp4tp2.mlir": workload,
    "jax_example.mlir": published,
    "convolution.mlir": published,
    "resnet_50_inference_step_4_devices_1024_batch.mlir": published,
    "resnet_50_train_step_4_devices_1024_batch.mlir": published,
    "test_dependency_graph.mlir": published,
}


@pytest.mark.parametrize("name", _WORKLOADS)
def test_workloads_agree_but_for_rounding(name: str) -> None:
    source = _WORKLOADS[name](name)
    theirs = hlo_cost_analysis(source)

    ours = _our_counts(load_source(source, name=name))

    # XLA adds thousands of figures in single precision, and folds x * 1 and its like.
    assert ours.flops == pytest.approx(theirs.flops, rel=1e-4)
    assert ours.transcendentals == pytest.approx(theirs.transcendentals, rel=1e-4)


_JUDGED_ELSEWHERE = frozenset(
    {"call", "case", "constant", "custom_call", "if", "reduce_scatter", "return", "while"}
)


def _single_op_modules(program: Program) -> Iterator[tuple[str, Op]]:
    for function in program.functions.values():
        for op in nested_ops(function.body):
            meshes = any("mesh" in text for name, text in op.attributes if name == "replica_groups")
            if op.dialect == "func" or op.kind in _JUDGED_ELSEWHERE or meshes:
                continue
            # Operands of their own, or XLA would fold such as select(p, x, x).
            arguments = tuple(Value(type=value.type) for value in op.operands)
            alone = replace(op, operands=arguments)
            yield module_text(function_text("main", arguments, (alone,), op.results)), op


def _single(value: float) -> float:
    """Round to the single precision in which XLA counts."""
    return struct.unpack("f", struct.pack("f", value))[0]


@pytest.mark.parametrize("name", _WORKLOADS)
def test_every_operation_of_the_workloads_agrees(name: str) -> None:
    program = load_source(_WORKLOADS[name](name), name=name)
    distinct = dict(_single_op_modules(program))
    differing: list[str] = []
    for text, op in distinct.items():
        ours, theirs = total(expand(op, program.functions)), hlo_cost_analysis(text)
        agrees = _single(ours.total_flops) == theirs.flops
        if not agrees or _single(ours.transcendentals) != theirs.transcendentals:
            differing.append(f"{op.location}: {ours.total_flops} against {theirs.flops}")
    assert differing == []


def test_top_k_moves_the_bytes_that_xla_counts() -> None:
    rows, kept = "tensor<4x100xf32>", "(tensor<4x8xf32>, tensor<4x8xi32>)"
    source = f"""func.func @main(%a: {rows}) -> {kept} {{
      %v, %i = mhlo.topk(%a, k = 8) : {rows} -> {kept}
      return %v, %i : tensor<4x8xf32>, tensor<4x8xi32>
    }}"""
    theirs = hlo_cost_analysis(source)

    ours = total(expand(load_source(source.encode(), name="t").main.body.operations))

    pointers = 2 * 8  # of the tuple that HLO makes of the results
    assert ours.bytes_read + ours.bytes_written == theirs.bytes_accessed - pointers
    assert theirs.flops == 0  # it has no count for comparisons in a heap


def test_a_module_that_xla_cannot_convert_is_an_error() -> None:
    with pytest.raises(HespasError, match="XLA cannot convert it"):
        hlo_cost_analysis("func.func @main( {}")
