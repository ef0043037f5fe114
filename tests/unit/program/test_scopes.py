from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.program.scopes import (
    NO_NAME,
    Phase,
    joined_scope,
    joined_scopes,
    merged_layers,
    read_scope,
)

PIECES = ("a", "f(", ")", "/", "//", "while", "body", "cond", "branch_0_fun", "jvp(", ";")
FORWARD, BACKWARD, AGAIN = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTATION


@pytest.mark.parametrize(
    ("scope", "phase", "path", "operation"),
    [
        ("jit(f)/tanh", None, "", "tanh"),
        ("jit(f)/jvp(layers_0)/mlp/tanh", FORWARD, "layers_0/mlp", "tanh"),
        ("jit(f)/transpose(jvp(layers_0))/mlp/mul", BACKWARD, "layers_0/mlp", "mul"),
        ("jit(f)/jvp(vmap(layers_0))/mlp/tanh", FORWARD, "layers_0/mlp", "tanh"),
        ("jit(f)/jvp(transpose(jvp(a)))/b/neg", BACKWARD, "a/b", "neg"),
        ("jit(f)/train/transpose(jvp(a))/b/neg", BACKWARD, "train/a/b", "neg"),
        ("jit(f)/transpose(jvp(jit(mlp)))/a/neg", BACKWARD, "a", "neg"),
        (
            "jit(f)/transpose(jvp(d))/jvp(d)/checkpoint/rematted_computation/a/dot_general",
            AGAIN,
            "d/a",
            "dot_general",
        ),
        (
            "jit(f)/transpose(jvp(d))/e/jvp(d)/e/checkpoint/a/dot_general",
            BACKWARD,
            "d/e/a",
            "dot_general",
        ),
        ("jit(f)/jvp(d)/while/body/closed_call/a/tanh", FORWARD, "d/a", "tanh"),
        ("jit(f)/jvp(d)/while/cond/lt", FORWARD, "d", "lt"),
        ("jit(f)/jvp(d)/while", FORWARD, "d", "while"),
        ("jit(f)/cond/branch_1_fun/a/tanh", None, "a", "tanh"),
        ("jit(f)/body/tanh", None, "body", "tanh"),
        ("jit(f)/a/bse,ehd->bshd/dot_general", None, "a", "dot_general"),
        ("jit(f)/a/EBCM,EMH -> EBCH/dot_general", None, "a", "dot_general"),
        ("jit(f)/jvp(a)/jit(silu)", FORWARD, "a", ""),
        ("jit(f)/optimiser/adam/mul", Phase.OPTIMISER, "optimiser/adam", "mul"),
        ("jit(f)/optimizer/mul", Phase.OPTIMISER, "optimizer", "mul"),
        ("jit(f)/transpose(jvp(optimizer))/mul", BACKWARD, "optimizer", "mul"),
        ("jit(f)/sgd_like", None, "", "sgd_like"),
        ("jit(f)/transpose", None, "", "transpose"),
        ("jit(f)/transpose(jvp())/mul;transpose(jvp())/add", BACKWARD, "", "mul"),
        ("jit(<lambda>)/jvp(f(x))/mul", FORWARD, "f(x)", "mul"),
        # Of several operations: what all agree on.
        ("jit(f)/jvp(d)/(a/b/mul:a/c/mul)", FORWARD, "d/a", ""),
        ("jit(f)/(jvp(d)/a/mul:jvp(d)/a/mul)", FORWARD, "d/a", "mul"),
        ("jit(f)/(jvp(d)/mul:jvp(e)/mul)", FORWARD, "", ""),
        ("jit(f)/d/(a:b)/mul", None, "d", ""),
        ("jit(f)/(jvp(d)/mul:transpose(jvp(d))/mul)", None, "", ""),
        ("jit(f)/(a/mul:b/mul)", None, "", ""),
        ("jit(f)/a/(b:c)/(d:e)", None, "", ""),
    ],
)
def test_a_name_stack_says_phase_path_and_operation(
    scope: str, phase: Phase | None, path: str, operation: str
) -> None:
    name = read_scope(scope)
    assert (name.phase, "/".join(name.path), name.operation) == (phase, path, operation)


@pytest.mark.parametrize("scope", ["", "w", "state['weights']['head']", "reduce_sum", "add.7"])
def test_arguments_and_the_compilers_own_have_no_name(scope: str) -> None:
    assert read_scope(scope) is NO_NAME


@given(st.lists(st.sampled_from(PIECES)))
def test_any_text_is_read(parts: list[str]) -> None:
    scope = "".join(parts)
    assert "" not in read_scope(scope).path
    assert read_scope("jit(f)/" + "/".join(parts)).phase in (None, *Phase)


def test_unbalanced_parentheses_are_read_as_they_stand() -> None:
    assert read_scope("jit(f)/a)/b/mul").operation == "mul"
    assert read_scope("jit(f/a/mul").path == ()


def test_numbers_of_layers() -> None:
    path = ("layers_00", "h.3", "block12", "v", "3", "top_5_gate")
    assert merged_layers(path) == ("layers", "h", "block12", "v", "3", "top_5_gate")


def test_joining_with_nothing_changes_nothing() -> None:
    assert joined_scope("", "a/b") == "a/b"
    assert joined_scope("a/b", "") == "a/b"


STACKS = st.lists(
    st.sampled_from(("jit(f)", "jvp(a)", "transpose(jvp(a))", "a", "b", "while", "body", "mul")),
    min_size=1,
    max_size=6,
).map("/".join)


@given(st.lists(STACKS, min_size=1, max_size=4))
def test_joined_stacks_begin_with_what_all_do(scopes: list[str]) -> None:
    path = read_scope(joined_scopes(scopes)).path
    assert all(read_scope(scope).path[: len(path)] == path for scope in scopes)
