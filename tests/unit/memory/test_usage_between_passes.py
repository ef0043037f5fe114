"""What the forward pass of a program holds for the backward pass."""

from __future__ import annotations

from collections.abc import Mapping

from hespas.memory.usage import held_between
from hespas.program.program import Op, Program
from hespas.program.scopes import Phase
from hespas.program.types import DEVICE_MEMORY
from scheduled import kernel, loop, scheduled

V_BYTES = 1024
F, B, R = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTATION


def vectors_held(program: Program, phases: Mapping[str, Phase]) -> int:
    """Return what is held between passes, in vectors."""

    def phase_of(op: Op) -> Phase | None:
        return phases.get(op.instruction)

    kept_bytes, _ = held_between(program, phase_of, space=DEVICE_MEMORY)
    return kept_bytes // V_BYTES


def test_what_the_backward_pass_reads_of_the_forward_pass_is_held() -> None:
    lines = [kernel("f0", "a"), kernel("f1", "f0"), kernel("f2", "f1")]
    reads = "%b0 = f32[256] subtract(%f0, %f2)"
    program = scheduled(*lines, reads, kernel("b1", "b0"))
    # f1 is read within the forward pass alone.
    assert vectors_held(program, {"f0": F, "f1": F, "f2": F, "b0": B, "b1": B}) == 2


def test_a_program_of_one_pass_holds_nothing() -> None:
    program = scheduled(kernel("f0", "a"), kernel("f1", "f0"), kernel("f2", "f1"))
    assert vectors_held(program, dict.fromkeys(("f0", "f1", "f2"), F)) == 0


def test_a_backward_operation_that_runs_early_is_no_end_of_the_forward_pass() -> None:
    inner, rounds = loop("r", "f0", kernel("w", "v"))
    early = kernel("part", "a")
    late = "%b0 = f32[256] subtract(%part, %r)"
    program = scheduled(
        kernel("f0", "a"), early, *rounds, late, kernel("b1", "b0"), functions=inner
    )
    phases = {"f0": F, "part": B, "out_r": F, "b0": B, "b1": B}
    assert vectors_held(program, phases) == 1


def test_what_the_forward_pass_writes_over_zeros_of_the_backward_pass_is_held() -> None:
    """XLA makes equal zeros once, under one of their names."""
    inner, rounds = loop("r", "zeros", kernel("w", "v"))
    program = scheduled(
        kernel("zeros", "a"), *rounds, kernel("b0", "r"), kernel("b1", "b0"), functions=inner
    )
    assert vectors_held(program, {"zeros": B, "out_r": F, "b0": B, "b1": B}) == 1


def test_what_has_no_phase_belongs_to_the_pass_that_it_serves() -> None:
    lines = [kernel("own", "a"), kernel("f0", "a"), "%b0 = f32[256] subtract(%own, %f0)"]
    program = scheduled(*lines, kernel("b1", "b0"))
    assert vectors_held(program, {"f0": F, "b0": R, "b1": B}) == 1
    assert vectors_held(program, {"own": F, "f0": F, "b0": R, "b1": B}) == 2


def test_what_the_forward_pass_makes_late_is_held_as_what_it_is_made_of() -> None:
    lines = [kernel("f0", "a"), kernel("b0", "a"), kernel("f1", "f0")]
    program = scheduled(*lines, "%b1 = f32[256] subtract(%b0, %f1)", kernel("b2", "b1"))
    assert vectors_held(program, {"f0": F, "f1": F, "b0": B, "b1": B, "b2": B}) == 1
