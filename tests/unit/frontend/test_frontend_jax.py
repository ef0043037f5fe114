from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hespas.errors import ProgramError, UnpartitionedError
from hespas.frontend.load import load_program, load_source
from hespas.frontend.overrides import LoadOptions
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs, WhileAttrs
from hespas.program.devices import device_group_table, device_pairs
from hespas.program.program import Op, Program, is_communication_op, nested_ops
from hespas.split.flatten import flatten
from programs import ops_of


def loaded(jax_exports: Path, name: str) -> Program:
    path = jax_exports / f"{name}.mlir"
    return load_source(path.read_bytes(), name=str(path))


def trip_counts(program: Program) -> list[int | None]:
    loops = [op.attrs for op in ops_of(program, "while")]
    return [attrs.trip_count for attrs in loops if isinstance(attrs, WhileAttrs)]


def communication(program: Program) -> list[Op]:
    return [op for op in flatten(program).operations if is_communication_op(op)]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("layernorm", {"reduce": 2, "rsqrt": 1}),
        ("cond", {"case": 1, "sine": 1, "cosine": 1}),
        ("top_k", {"sort": 1, "iota": 1, "slice": 2}),
        ("normal", {"while": 1, "iota": 2}),
        ("conv1d", {"convolution": 1}),
        ("scan", {"while": 1}),
        ("nested_jit", {"sine": 1, "add": 1, "multiply": 1}),
        ("checkpoint", {"optimization_barrier": 1}),
        ("custom_vjp", {"maximum": 1, "minimum": 1}),
        ("special", {"log_plus_one": 1}),
        ("one_device_constraint", {"multiply": 1, "sharding_constraint": 0}),
        ("one_device_mesh", {"multiply": 1, "all_reduce": 1, "manual_computation": 0}),
    ],
)
def test_programs_for_one_device(jax_exports: Path, name: str, kinds: dict[str, int]) -> None:
    program = loaded(jax_exports, name)
    operations = flatten(program).operations
    inside = [inner for op in operations for region in op.regions for inner in nested_ops(region)]
    found = Counter(op.kind for op in (*operations, *inside))
    assert {kind: found[kind] for kind in kinds} == kinds
    assert program.declared_devices == 1
    assert not {op.dialect for op in (*operations, *inside)} - {"stablehlo", "func"}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("scan", [8]),
        ("while_loop", [4]),
        ("normal", [5]),
        ("nested_loops", [5, 3]),
        ("dynamic_loop", [None]),
        ("psum_scan", [8]),
    ],
)
def test_trip_counts(jax_exports: Path, name: str, counts: list[int | None]) -> None:
    assert trip_counts(loaded(jax_exports, name)) == counts


def test_a_portable_artifact_is_the_text(jax_exports: Path) -> None:
    artifact = load_program(jax_exports / "layernorm.portable.mlirbc")
    text = loaded(jax_exports, "layernorm")
    # Exporting merges equal constants.
    kinds = [
        Counter(op.kind for op in program.main.body.operations if op.kind != "constant")
        for program in (artifact, text)
    ]
    assert kinds[0] == kinds[1]
    assert [str(value.type) for value in artifact.main.results] == ["tensor<8x8xf32>"]


@pytest.mark.parametrize(
    ("name", "kind", "groups"),
    [
        ("psum", "all_reduce", ((0, 1, 2, 3),)),
        ("matching_arguments", "all_reduce", ((0, 1, 2, 3),)),
        ("two_axes", "all_reduce", ((0, 1, 2, 3),)),
        ("one_of_two_axes", "all_reduce", ((0, 1), (2, 3))),
        ("gathered", "all_gather", ((0, 1, 2, 3),)),
        ("reduce_scatter", "reduce_scatter", ((0, 1, 2, 3),)),
        ("all_to_all", "all_to_all", ((0, 1, 2, 3),)),
    ],
)
def test_collectives_of_shard_map(
    jax_exports: Path, name: str, kind: str, groups: tuple[tuple[int, ...], ...]
) -> None:
    program = loaded(jax_exports, name)
    (op,) = communication(program)
    assert (op.kind, device_group_table(op, program)) == (kind, groups)
    assert isinstance(op.attrs, CollectiveAttrs)


@pytest.mark.parametrize("name", ["ppermute", "in_sequence", "in_nested_jit"])
def test_permutations_of_shard_map(jax_exports: Path, name: str) -> None:
    program = loaded(jax_exports, name)
    (op,) = communication(program)
    assert isinstance(op.attrs, PermuteAttrs)
    assert device_pairs(op, program) == ((0, 1), (1, 2), (2, 3), (3, 0))
    assert [str(value.type) for value in op.operands] == ["tensor<4xf32>"]


def test_two_shard_maps_in_sequence_are_one_program(jax_exports: Path) -> None:
    program = loaded(jax_exports, "in_sequence")
    operations = flatten(program).operations
    assert [op.kind for op in operations] == ["sine", "collective_permute"]
    assert operations[1].operands == operations[0].results
    assert [str(value.type) for value in program.main.body.arguments] == ["tensor<4xf32>"]


def test_a_collective_in_a_scan_happens_every_time(jax_exports: Path) -> None:
    assert [op.kind for op in communication(loaded(jax_exports, "psum_scan"))] == ["all_reduce"] * 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("op_outside", "outside of shard_map works on arrays of the whole mesh"),
        ("in_scan", "stablehlo.while outside of shard_map"),
        ("partly_manual", "mesh axes y are not manual in shard_map"),
        ("resharded_between", r"sharded as \[\{x\}\] but used as \[\{y\}\]"),
        ("resharded_argument", r"sharded as \[\{x\}\] but used as \[\{y\}\]"),
    ],
)
def test_shard_map_that_leaves_work_to_the_partitioner(
    jax_exports: Path, name: str, message: str
) -> None:
    with pytest.raises(UnpartitionedError, match=message) as raised:
        loaded(jax_exports, name)
    assert f"{name}.mlir:" in raised.value.location
    assert "partition the program first" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("named_sharding", "arguments carry sdy.sharding"),
        ("named_sharding.gspmd", "arguments carry mhlo.sharding"),
        ("constraint", "mlir:4:10 holds sdy.sharding_constraint"),
        ("constraint.gspmd", "mlir:3:10 holds Sharding"),
        ("psum.gspmd", "mlir:3:10 holds Sharding"),
    ],
)
def test_a_sharded_program_is_not_priced_as_one_devices(
    jax_exports: Path, name: str, reason: str
) -> None:
    expected = f"sharded over 4 devices but not yet partitioned .*{reason}"
    with pytest.raises(UnpartitionedError, match=expected) as raised:
        loaded(jax_exports, name)
    assert "SPMD partitioner" in raised.value.hint


def test_debug_locations_carry_the_name_in_jax(jax_exports: Path) -> None:
    (loop,) = ops_of(loaded(jax_exports, "dynamic_loop.debug"), "while")
    assert loop.location.startswith("jit(<lambda>)/while (")
    assert loop.location.endswith("): stablehlo.while")
    assert "export_jax.py:" in loop.source_location


def test_a_trip_count_by_the_line_in_a_debug_location(jax_exports: Path) -> None:
    (loop,) = ops_of(loaded(jax_exports, "dynamic_loop.debug"), "while")
    line = loop.source_location.split(":")[1]
    options = LoadOptions(trip_counts={line: 12})
    program = load_program(jax_exports / "dynamic_loop.debug.mlir", options=options)
    assert trip_counts(program) == [12]


def test_an_unknown_trip_count_stops_what_needs_it(jax_exports: Path) -> None:
    text = (jax_exports / "psum_scan.mlir").read_text()
    path = jax_exports / "psum_scan.dynamic.mlir"
    path.write_text(
        text.replace("compare LT, %iterArg_0, %c_2", "compare LT, %iterArg_0, %iterArg_0")
    )
    with pytest.raises(
        ProgramError, match=r"psum_scan.dynamic.mlir:8:.*the trip count of this loop"
    ):
        flatten(load_program(path))
