from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import hespas
from hespas.lower.beside import ASSUMPTION as BESIDE
from hespas.lower.fused import LIBRARY_ASSUMPTION as LIBRARIES
from hespas.models.configuration import LEFT_OUT
from hespas.prediction.figures.assumptions import assumptions_of_step, grouped_assumptions
from hespas.prediction.result import CONGESTION_ASSUMPTION, NETWORK_ASSUMPTION
from hespas.price.estimate import Estimate
from hespas.program.assumption import OF_COMMUNICATION, OF_COMPUTATION, SUBJECTS, assumed
from hespas.report.text import group_text, step_assumption_lines

ACCESSES = "accesses go where data says, and are taken to be scattered"
SIZES = "products of bf16 outside the measured sizes (in {}) take as long as the smallest"


def test_kernels_of_which_the_same_is_assumed_are_one_line() -> None:
    texts = [f"kernel loop_{n}: {n + 1} {ACCESSES}" for n in range(30)]
    [group] = grouped_assumptions(texts, dict.fromkeys(texts, 0.01), 1.0)
    assert group.count == 30
    assert group.share == pytest.approx(0.3)
    assert group.examples == ["loop_0", "loop_1", "loop_2"]
    assert (
        group_text(group)
        == f"30 kernels (loop_0, loop_1, loop_2, ...): {ACCESSES} (decides 30 % of the computation)"
    )


def test_sizes_of_which_the_same_is_assumed_are_one_line() -> None:
    [group] = grouped_assumptions([SIZES.format("k, n"), SIZES.format("m")])
    assert group.text == SIZES.format("k, m, n")
    assert group.share is None


def test_what_decides_most_stands_first_behind_what_is_about_everything() -> None:
    texts = ["small", "everything", "large", "all"]
    groups = grouped_assumptions(texts, {"small": 1.0, "large": 5.0}, 10.0)
    assert [group.text for group in groups] == ["everything", "all", "large", "small"]


def test_an_assumption_alone_stays_as_it_is() -> None:
    text = f"kernel loop_add: 2 {ACCESSES}"
    [group] = grouped_assumptions([text, text], {text: 1e-9}, 1.0)
    assert (group.text, group.count) == (text, 1)
    assert group_text(group).endswith("(decides less than 1 % of the computation)")


def test_the_share_is_that_of_the_operations_it_was_made_for() -> None:
    prediction = hespas.predict(
        "examples/attention_block.mlir", "H100_80GB", "H100_80GB_4GPU", method="measured"
    )
    rows = {str(row["text"]): row for row in prediction.rows("assumptions")}
    products = next(row for text, row in rows.items() if text.startswith("products of bf16 from"))
    dots = prediction.estimates.total.per_op["stablehlo.dot_general"].time_s
    assert products["share"] == pytest.approx(dots / prediction.compute_s)


def step(total_s: float, **noted_s: float) -> tuple[Any, Estimate]:
    """Return a step of 10 s, 6 of them of computation and 3 of exposed communication."""
    prediction = SimpleNamespace(
        step_time_s=10.0,
        compute_s=total_s,
        exposed_communication_s=3.0,
        exposed_host_transfer_s=1.0,
        launch_wait_s=0.0,
        slowed_s=0.0,
        assumed=[
            *map(assumed, ("nobody knows", "memory: in f32", "host: beside", "noted", *noted_s)),
            assumed("network: shared"),
            assumed("fast links", OF_COMMUNICATION),
            assumed("a roofline", OF_COMPUTATION),
            assumed("the batch is 4"),
        ],
    )
    return prediction, Estimate(notes=tuple(noted_s), noted_s=dict(noted_s))


SHARES = [
    ("the batch is 4", 1.0, ["time", "memory"]),
    ("a roofline", 0.6, ["time"]),
    ("kernels", 0.5, ["time"]),
    ("network: shared", 0.3, ["time", "overlap"]),
    ("fast links", 0.3, ["time"]),
    ("host: beside", 0.1, ["time", "overlap"]),
    ("nobody knows", None, ["time"]),
    ("memory: in f32", None, ["memory"]),
    ("noted", None, ["time"]),
]


def test_what_decides_most_of_the_step_stands_first_and_what_nobody_knows_last() -> None:
    groups = assumptions_of_step(*step(6.0, kernels=5.0))
    assert [(each.text, each.step_share, each.about) for each in groups] == SHARES


def test_three_are_shown_and_what_decides_fits_and_hidden() -> None:
    groups = assumptions_of_step(*step(6.0, kernels=5.0))
    few = step_assumption_lines(groups, ["hot"], verbose=False)
    assert few == [
        "Assumed (6 of 9, by the share of the step that each decides; --verbose shows all):",
        "  - the batch is 4 (decides 100 % of the step and what fits)",
        "  - a roofline (decides 60 % of the step)",
        "  - kernels (decides 50 % of the step)",
        "  - network: shared (decides 30 % of the step and what is hidden)",
        "  - host: beside (decides 10 % of the step and what is hidden)",
        "  - memory: in f32 (decides what fits)",
        "warning: hot",
    ]
    every = step_assumption_lines(groups, [], verbose=True)
    assert every[0] == "Assumed:"
    assert len(every) == 1 + len(groups)
    assert "  - nobody knows (share of the step not known)" in every


def test_shares_of_a_step_are_of_its_own_times() -> None:
    prediction = hespas.predict(
        "examples/attention_block.mlir", "H100_80GB", "H100_80GB_4GPU", method="measured"
    )
    rows = {str(row["text"]): row for row in prediction.rows("assumptions")}
    dots = prediction.estimates.total.per_op["stablehlo.dot_general"].time_s
    products = next(row for text, row in rows.items() if text.startswith("measured: matrix prod"))
    assert products["step_share"] == pytest.approx(dots / prediction.step_time_s)
    network = next(row for text, row in rows.items() if text.startswith("network: "))
    exposed = prediction.exposed_communication_s / prediction.step_time_s
    assert network["step_share"] == pytest.approx(exposed)
    listed = (row["step_share"] for row in rows.values())
    shares = [share for share in listed if isinstance(share, float)]
    assert shares == sorted(shares, reverse=True)


def test_subjects_begin_assumptions_that_are_made() -> None:
    """Whoever changes how such a sentence begins finds it here."""
    prediction = hespas.predict("llama3-100m", cluster="4xH100_80GB", sequence=512)
    known = {NETWORK_ASSUMPTION, CONGESTION_ASSUMPTION, BESIDE, LIBRARIES, LEFT_OUT}
    made = known | {*prediction.assumptions}
    unseen = {start for start in SUBJECTS if not any(text.startswith(start) for text in made)}
    # What takes a compiler, the memory of the host, stages, experts or a large model; states.
    assert unseen <= {
        *("attention is ", "experts: ", "host: ", "memory: ", "pipeline: sums of gradients"),
        # What is recorded.
        *("communication: ", "computation: ", "host launches: "),
        "the program is as XLA ",
    }
