from __future__ import annotations

import pytest

from hespas.errors import ConfigError, ProgramError
from hespas.frontend.load import load_per_device
from hespas.frontend.overrides import LoadOptions, UsedOverrides
from hespas.program.attrs import CaseAttrs, WhileAttrs
from programs import main_function, ops_of, read


def loop(limit: str) -> str:
    """Return a program with a loop on line 6, whose count shows if its limit is ``%limit``."""
    return main_function(
        f"""
    %start = stablehlo.constant dense<0> : tensor<i32>
    %limit = stablehlo.constant dense<10> : tensor<i32>
    %step = stablehlo.constant dense<1> : tensor<i32>
    %r = stablehlo.while(%i = %start) : tensor<i32>
    cond {{
      %c = stablehlo.compare LT, %i, {limit} : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %next = stablehlo.add %i, %step : tensor<i32>
      stablehlo.return %next : tensor<i32>
    }}
    return""",
        arguments="%n: tensor<i32>",
    )


COUNTED, UNCOUNTED = loop("%limit"), loop("%n")


def count(text: str, counts: dict[str, int]) -> int | None:
    (op,) = ops_of(read(text, options=LoadOptions(trip_counts=counts)), "while")
    assert isinstance(op.attrs, WhileAttrs)
    return op.attrs.trip_count


def used(text: str, options: LoadOptions) -> UsedOverrides:
    return load_per_device(text.encode(), name="a.mlir", options=options).used


def test_a_count_that_the_user_sets() -> None:
    assert count(UNCOUNTED, {}) is None
    assert count(UNCOUNTED, {"": 7}) == 7
    assert count(UNCOUNTED, {"6": 5}) == 5
    assert count(UNCOUNTED, {"6": 5, "": 7}) == 5
    assert count(COUNTED, {"": 7}) == 10
    assert count(COUNTED, {"6": 3}) == 3
    program = read(UNCOUNTED, options=LoadOptions(trip_counts={"6": 5}))
    assert program.assumptions == ("test.mlir:6:10: the loop runs 5 times, as the user says",)
    assert read(COUNTED, options=LoadOptions(trip_counts={"": 5})).assumptions == ()


@pytest.mark.parametrize(
    ("text", "counts", "keys"),
    [
        (UNCOUNTED, {"": 7}, {""}),
        (UNCOUNTED, {"6": 5, "": 7}, {"6"}),
        (COUNTED, {"": 7}, set[str]()),
        (COUNTED, {"6": 7}, {"6"}),
    ],
)
def test_loading_reports_which_counts_had_an_effect(
    text: str, counts: dict[str, int], keys: set[str]
) -> None:
    assert used(text, LoadOptions(trip_counts=counts)).trip_counts == keys


def test_a_line_without_a_loop_is_an_error() -> None:
    options = LoadOptions(trip_counts={"99": 4})
    with pytest.raises(ConfigError, match="there is no loop on line 99; lines of a loop: 6"):
        read(COUNTED, options=options)
    with pytest.raises(ConfigError, match="no branch on line 6; lines of a branch: none"):
        read(COUNTED, options=LoadOptions(branch_weights={"6": (1.0,)}))


BRANCHES = main_function(
    """
    %r = "stablehlo.case"(%i) ({
      %x = stablehlo.constant dense<1> : tensor<i32>
      stablehlo.return %x : tensor<i32>
    }, {
      stablehlo.return %i : tensor<i32>
    }) : (tensor<i32>) -> tensor<i32>
    return %r : tensor<i32>""",
    arguments="%i: tensor<i32>",
    results="tensor<i32>",
)


@pytest.mark.parametrize("line", ["", "3"])
def test_branch_weights(line: str) -> None:
    program = read(BRANCHES, options=LoadOptions(branch_weights={line: (0.75, 0.25)}))
    (op,) = ops_of(program, "case")
    assert op.attrs == CaseAttrs(weights=(0.75, 0.25))
    assert "branches are taken with weights [0.75, 0.25]" in program.assumptions[0]
    assert ops_of(read(BRANCHES), "case")[0].attrs == CaseAttrs(weights=None)


def test_loading_reports_which_weights_had_an_effect() -> None:
    half = (0.5, 0.5)
    both = LoadOptions(branch_weights={"3": half, "": half})
    assert used(BRANCHES, both).branch_weights == {"3"}
    assert used(BRANCHES, LoadOptions(branch_weights={"": half})).branch_weights == {""}
    assert used(COUNTED, LoadOptions(branch_weights={"": half})).branch_weights == set()


def test_as_many_weights_as_branches() -> None:
    with pytest.raises(ProgramError, match=r"case: 3 branch weights .* 2 branches"):
        read(BRANCHES, options=LoadOptions(branch_weights={"": (0.5, 0.25, 0.25)}))


def test_options_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="a trip count is -1; give 0 or more"):
        LoadOptions(trip_counts={"": -1})
    for weights in ((0.5, 0.4), (1.5, -0.5), ()):
        with pytest.raises(ConfigError, match="give shares that add to 1"):
            LoadOptions(branch_weights={"": weights})
