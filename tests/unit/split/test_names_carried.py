"""Combined collectives are charged to what their tensors are named after, by bytes."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.program.program import Op, Program, nested_ops
from hespas.split.names import carried, operation_names
from hespas.split.options import SplitOptions
from hespas.split.strategies import split_program

GROUPS = "replica_groups={{0,1}}, use_global_device_ids=true"
HEADER = """HloModule step, is_scheduled=true, num_partitions=2

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%negated (p: f32[24]) -> f32[24] {
  %p = f32[24] parameter(0)
  ROOT %n = f32[24] negate(%p)
}

%negated_few (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  ROOT %n = f32[8] negate(%p)
}
"""


def many(name: str, operand: str, scope: str = "") -> str:
    return _fusion(name, operand, "f32[24]", "negated", scope)


def few(name: str, operand: str, scope: str = "") -> str:
    return _fusion(name, operand, "f32[8]", "negated_few", scope)


def _fusion(name: str, operand: str, kind: str, called: str, scope: str) -> str:
    named = f', metadata={{op_name="{scope}"}}' if scope else ""
    return f"%{name} = {kind} fusion(%{operand}), kind=kLoop, calls=%{called}{named}"


REDUCED = (
    "%both = (f32[24], f32[8]) all-reduce(%m, %f), channel_id=1, to_apply=%add, " + GROUPS,
    "%r = f32[24] get-tuple-element(%both), index=0",
    "%s = f32[8] get-tuple-element(%both), index=1",
)
ENTRY = "ENTRY %main (a: f32[24], b: f32[8]) -> (f32[24], f32[8]) {"
ARGUMENTS = ("%a = f32[24] parameter(0)", "%b = f32[8] parameter(1)")
END = ("ROOT %out = (f32[24], f32[8]) tuple(%r, %s)", "}")


def read(*lines: str) -> Program:
    text = "\n".join([HEADER, ENTRY, *ARGUMENTS, *lines, *END])
    return load_source(text.encode(), name="step.hlo")


def shares(program: Program, kind: str = "all_reduce") -> dict[str, float]:
    """Return the shares of a program's first collective by path, or by what stands for one."""
    names = operation_names(split_program(program, SplitOptions()))
    (op, *_) = _collectives(program, kind)
    found = carried(program, names).of(op)
    return {"/".join(named.path) or named.operation: share for named, share in found}


def _collectives(program: Program, kind: str) -> list[Op]:
    return [op for op in nested_ops(program.main.body) if op.kind == kind]


MLP, NORM = "jit(step)/transpose(jvp(mlp))/dot", "jit(step)/transpose(jvp(norm))/mul"


def test_what_is_reduced_is_named_after_what_made_it() -> None:
    program = read(many("m", "a", MLP), few("f", "b", NORM), *REDUCED)
    assert shares(program) == {"mlp": 0.75, "norm": 0.25}


def test_operations_without_a_name_are_looked_through() -> None:
    lines = (
        many("m0", "a", MLP),
        "%m = f32[24] copy(%m0)",
        few("f0", "b", NORM),
        "%f1 = f32[8] bitcast(%f0)",
        few("f", "f1"),
    )
    assert shares(read(*lines, *REDUCED)) == {"mlp": 0.75, "norm": 0.25}


def test_what_one_module_made_is_all_its_own() -> None:
    program = read(many("m", "a", MLP), few("f", "b", MLP), *REDUCED)
    assert shares(program) == {"mlp": pytest.approx(1.0)}


def test_what_nothing_names_is_said_to_be_combined() -> None:
    named = many("r", "x", MLP)
    reduced = (line.replace("%r =", "%x =") for line in REDUCED)
    program = read(many("m", "a"), few("f", "b"), *reduced, named)
    assert shares(program) == {"combined all_reduce of 2 tensors": 1.0}


def test_a_part_that_nothing_names_is_charged_to_what_the_others_share() -> None:
    program = read(many("m", "a", MLP), few("f", "b"), *REDUCED)
    assert shares(program) == {"mlp": 1.0}


def test_a_program_without_modules_has_no_names_for_any() -> None:
    assert shares(read(many("m", "a"), few("f", "b"), *REDUCED)) == {"": 1.0}


def test_what_starts_asynchronously_is_the_same() -> None:
    started = (
        REDUCED[0].replace("%both", "%begun").replace("all-reduce", "all-reduce-start"),
        "%both = (f32[24], f32[8]) all-reduce-done(%begun)",
        *REDUCED[1:],
    )
    program = read(many("m", "a", MLP), few("f", "b", NORM), *started)
    assert shares(program) == {"mlp": 0.75, "norm": 0.25}


@pytest.mark.parametrize("is_started", [True, False])
def test_what_is_gathered_is_named_after_what_reads_it(*, is_started: bool) -> None:
    kinds = "(f32[24], f32[8])"
    groups = "replica_groups={{0},{1}}, use_global_device_ids=true, dimensions={0}, channel_id=1"
    gather = (
        (
            f"%begun = ({kinds}, {kinds}) all-gather-start(%a, %b), {groups}",
            f"%both = {kinds} all-gather-done(%begun)",
        )
        if is_started
        else (f"%both = {kinds} all-gather(%a, %b), {groups}",)
    )
    lines = (
        *gather,
        "%x = f32[24] get-tuple-element(%both), index=0",
        "%y = f32[8] get-tuple-element(%both), index=1",
        "%z = f32[8] copy(%y)",
        many("r", "x", "jit(step)/jvp(mlp)/dot"),
        few("s", "z", "jit(step)/jvp(norm)/mul"),
    )
    assert shares(read(*lines), "all_gather") == {"mlp": 0.75, "norm": 0.25}


def test_a_collective_of_one_tensor_keeps_its_own_name() -> None:
    named = 'metadata={op_name="jit(step)/jvp(attention)/psum"}'
    reduce = f"%r = f32[24] all-reduce(%m), channel_id=1, to_apply=%add, {GROUPS}"
    lines = (
        many("m", "a", MLP),
        f"{reduce}, {named}",
        few("s", "b", NORM),
    )
    assert shares(read(*lines)) == {"attention": 1.0}
