"""Attention that is not fused is known by its shapes, and fused takes what its operands take."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.device import Device
from hespas.prediction import composition
from hespas.prediction.explain.attention import Scores, unfused
from hespas.prediction.explain.changes import Change, all_changes
from hespas.prediction.options import AS_GIVEN, EstimateOptions, PredictOptions, ProgramOptions

# Memory alone takes time.
DEVICE = Device(name="slow", peak_flops=1e18, memory_bandwidth_bytes_per_s=1e3)
HEADS, LENGTH, SIZE = 4, 64, 8
SCORES = f"tensor<{HEADS}x{LENGTH}x{LENGTH}xf32>"
ROWS = f"tensor<{HEADS}x{LENGTH}x{SIZE}xf32>"
ONE_BYTES = 4 * HEADS * LENGTH * SIZE


def product(made: str, left: str, right: str, axes: str) -> str:
    kinds = {"%s": SCORES, "%e": SCORES, "%d": SCORES}
    result = kinds.get(made, ROWS)
    given = ", ".join(kinds.get(each, ROWS) for each in (left, right))
    return (
        f"{made} = stablehlo.dot_general {left}, {right}, batching_dims = [0] x [0], "
        f"contracting_dims = {axes} : ({given}) -> {result}"
    )


FORWARD = (
    product("%s", "%q", "%k", "[2] x [2]"),
    f"%e = stablehlo.exponential %s : {SCORES}",
    product("%o", "%e", "%v", "[2] x [1]"),
)
BACKWARD = (
    product("%d", "%o", "%v", "[2] x [2]"),
    product("%dv", "%e", "%o", "[1] x [1]"),
    product("%dq", "%d", "%k", "[2] x [1]"),
    product("%dk", "%d", "%q", "[1] x [1]"),
)


def program(*lines: str, result: str = "%o") -> str:
    arguments = ", ".join(f"%{name}: {ROWS}" for name in "qkv")
    body = "\n".join(lines)
    return (
        f"func.func @main({arguments}) -> {ROWS} {{\n{body}\nreturn {result} : {ROWS}\n}}\n"
    )  # fmt: skip


def fused(tmp_path: Path, text: str) -> Change | None:
    file = tmp_path / "attention.mlir"
    file.write_text(text)
    options = PredictOptions(
        program=ProgramOptions(file=file), compile=AS_GIVEN, estimate=EstimateOptions(node=DEVICE)
    )
    changes = all_changes(composition.predict(options))
    return next((each for each in changes if each.change == "attention fused"), None)


def test_attention_takes_its_operands_and_its_result(tmp_path: Path) -> None:
    found = fused(tmp_path, program(*FORWARD))
    assert found is not None
    assert found.step_time_s == pytest.approx(4 * ONE_BYTES / 1e3)
    assert "1 forward and 0 backward passes" in found.note
    assert f"{HEADS} x {LENGTH} x {LENGTH} scores" in found.note


MASK = f"tensor<{LENGTH}x{LENGTH}xi1>"
MASKS = f"tensor<{HEADS}x{LENGTH}x{LENGTH}xi1>"
PLACES = f"tensor<{LENGTH}x{LENGTH}xi32>"


def masked(direction: str, *, keys: str = "stablehlo.iota dim = 1") -> tuple[str, ...]:
    """Return attention whose scores are masked by places of queries and keys."""
    first, _, last = FORWARD
    return (
        first,
        f"%row = stablehlo.iota dim = 0 : {PLACES}",
        f"%one = stablehlo.constant dense<1> : {PLACES}",
        f"%moved = stablehlo.add %row, %one : {PLACES}",
        f"%column = {keys} : {PLACES}",
        f"%seen = stablehlo.compare {direction}, %column, %moved : ({PLACES}, {PLACES}) -> {MASK}",
        f"%mask = stablehlo.broadcast_in_dim %seen, dims = [1, 2] : ({MASK}) -> {MASKS}",
        f"%none = stablehlo.constant dense<-1.0e30> : {SCORES}",
        f"%left = stablehlo.select %mask, %s, %none : {MASKS}, {SCORES}",
        f"%e = stablehlo.exponential %left : {SCORES}",
        last,
    )


def scores(*lines: str) -> Scores:
    found = unfused(load_source(program(*lines).encode(), name="p.mlir"))
    assert found is not None
    return found


@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE"])
def test_a_causal_mask_leaves_half_of_the_scores(direction: str) -> None:
    whole, causal = (
        scores(*lines).fused(is_backward=False) for lines in (FORWARD, masked(direction))
    )
    assert (whole.is_causal, causal.is_causal) == (False, True)
    assert whole.scores == HEADS * LENGTH * LENGTH
    assert causal.scores == HEADS * LENGTH * (LENGTH + 1) // 2
    assert causal.flops / whole.flops == causal.scores / whole.scores


@pytest.mark.parametrize("lines", [masked("EQ"), masked("LT", keys="stablehlo.constant dense<3>")])
def test_other_comparisons_are_no_causal_mask(lines: tuple[str, ...]) -> None:
    assert not scores(*lines).is_causal


def test_the_note_says_what_a_kernel_computes(tmp_path: Path) -> None:
    whole, causal = (fused(tmp_path, program(*lines)) for lines in (FORWARD, masked("LE")))
    assert whole is not None
    assert causal is not None
    assert whole.note.endswith("that computes all scores")
    assert causal.note.endswith("that computes what its causal mask leaves")


def test_queries_that_share_keys_are_rows_of_one_product() -> None:
    sharing, rows = 2, 2 * LENGTH
    keys, values = (f"tensor<{HEADS}x{LENGTH}x{SIZE}xf32>" for _ in range(2))
    queries = f"tensor<{HEADS}x{rows}x{SIZE}xf32>"
    grouped, wide = f"tensor<{HEADS}x{rows}x{LENGTH}xf32>", 2 * HEADS
    by_head = f"tensor<{wide}x{LENGTH}x{LENGTH}xf32>"
    text = f"""func.func @main(%q: {queries}, %k: {keys}, %v: {values}) -> {queries} {{
      %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0],
        contracting_dims = [2] x [2] : ({queries}, {keys}) -> {grouped}
      %h = stablehlo.reshape %s : ({grouped}) -> {by_head}
      %x = stablehlo.exponential %h : {by_head}
      %e = stablehlo.reshape %x : ({by_head}) -> {grouped}
      %o = stablehlo.dot_general %e, %v, batching_dims = [0] x [0],
        contracting_dims = [2] x [1] : ({grouped}, {values}) -> {queries}
      return %o : {queries}
    }}"""
    found = unfused(load_source(text.encode(), name="p.mlir"))
    assert found is not None
    assert (found.heads, found.sharing, found.query_length) == (wide, sharing, LENGTH)
    attention = found.fused(is_backward=False)
    assert (attention.heads, attention.key_heads) == (wide, HEADS)


def test_gradients_read_the_result_and_write_three_more(tmp_path: Path) -> None:
    found = fused(tmp_path, program(*FORWARD, *BACKWARD, result="%dk"))
    assert found is not None
    assert found.step_time_s == pytest.approx((4 + 8) * ONE_BYTES / 1e3)
    assert "1 forward and 1 backward passes" in found.note


def test_products_without_an_exponential_are_no_attention(tmp_path: Path) -> None:
    first, _, last = FORWARD
    text = program(first, f"%e = stablehlo.negate %s : {SCORES}", last)
    assert fused(tmp_path, text) is None


def test_scores_that_no_product_sums_over_are_no_attention() -> None:
    lines = (*FORWARD[:2], f"%o = stablehlo.negate %q : {ROWS}")
    assert unfused(load_source(program(*lines).encode(), name="p.mlir")) is None
