from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import hespas
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.prediction.figures.communication import IDLE, SLOWED, communication_rows
from hespas.prediction.figures.step import run_report
from hespas.prediction.result import Prediction
from hespas.report.run import run_text

PROGRAM = """
module @step attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
func.func @main(%a: tensor<1024xf32>) -> tensor<1024xf32> {{
  %x = stablehlo.sine %a : tensor<1024xf32>
  %0 = "stablehlo.all_reduce"(%x) <{{
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids,
    replica_groups = dense<{groups}> : tensor<{shape}xi64>}}> ({{
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }}) : (tensor<1024xf32>) -> tensor<1024xf32>
  %1 = stablehlo.cosine %0 : tensor<1024xf32>
  return %1 : tensor<1024xf32>
}}
}}
"""
WHOLE = ("[[0, 1, 2, 3, 4, 5, 6, 7]]", "1x8")
PAIRS = ("[[0, 4], [1, 5], [2, 6], [3, 7]]", "4x2")
QUARTETS = ("[[0, 1, 2, 3], [4, 5, 6, 7]]", "2x4")
MESH = (("data", 2), ("tensor", 4))


def predicted(tmp_path: Path, groups: tuple[str, str], model: str = "astra-sim") -> Prediction:
    file = tmp_path / "step.mlir"
    file.write_text(PROGRAM.format(groups=groups[0], shape=groups[1]))
    return hespas.predict(file, "H100_80GB", "H100_80GB_8GPU", fidelity="exported", model=model)


@pytest.mark.parametrize(
    ("groups", "with_mesh", "without"),
    [
        (WHOLE, "data+tensor", "all 8"),
        (PAIRS, "data", "groups of 2, stride 4"),
        (QUARTETS, "tensor", "groups of 4, stride 1"),
    ],
)
def test_groups_are_named_by_the_axes_of_the_mesh(
    tmp_path: Path, groups: tuple[str, str], with_mesh: str, without: str
) -> None:
    prediction = predicted(tmp_path, groups)
    assert [row.axis for row in communication_rows(prediction)] == [without]
    assert [row.axis for row in communication_rows(replace(prediction, mesh=MESH))] == [with_mesh]


def test_a_row_counts_bytes_and_the_bandwidth_that_is_reached(tmp_path: Path) -> None:
    [row] = communication_rows(predicted(tmp_path, QUARTETS))
    assert (row.kind, row.count, row.devices, row.bytes) == ("all_reduce", 1, 4, 4096)
    assert row.bytes_per_s == pytest.approx(2 * 3 / 4 * 4096 / row.time_s)
    assert row.waits == "region_2"
    assert row.dimension == "0"
    assert row.limit_bytes_per_s is not None


@pytest.mark.parametrize("model", ["astra-sim", "hespas"])
@pytest.mark.parametrize("node", ["A100_SXM_40GB", "H100_80GB"])
def test_exposed_times_add_up_to_that_of_the_step(model: str, node: str) -> None:
    system = {"A100_SXM_40GB": "A100_SXM_40GB_4GPU", "H100_80GB": "H100_80GB_4GPU"}[node]
    prediction = hespas.predict(
        "examples/llama3_100m_fsdp4.mlir", node, system, fidelity="exported", model=model
    )
    rows = communication_rows(prediction)
    exposed_s = sum(row.exposed_s for row in rows)
    assert exposed_s == pytest.approx(prediction.exposed_communication_s, rel=1e-9)
    own = [row for row in rows if row.kind not in {IDLE, SLOWED}]
    slower_s = sum(row.exposed_s for row in rows if row.kind == SLOWED)
    assert slower_s == pytest.approx(prediction.slowed_s)
    assert (slower_s > 0) is (model == "hespas")
    assert sum(row.time_s for row in own) >= prediction.communication_s * (1 - 1e-9)
    for row in own:
        assert row.exposed_s + row.hidden_s == pytest.approx(row.time_s, rel=1e-9)
    assert {row.kind: row.count for row in own} == {"all_reduce": 272, "all_gather": 100}


ACROSS_THEN_INSIDE = """
module @step attributes {mhlo.num_partitions = 16 : i32, mhlo.num_replicas = 1 : i32} {
func.func @main(%a: tensor<16777216xf32>) -> tensor<16777216xf32> {
  %0 = "stablehlo.all_reduce"(%a) <{
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids,
    replica_groups = dense<[[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]]>
      : tensor<8x2xi64>}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) : (tensor<16777216xf32>) -> tensor<16777216xf32>
  %1 = "stablehlo.all_reduce"(%0) <{
    channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, use_global_device_ids,
    replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]>
      : tensor<2x8xi64>}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) : (tensor<16777216xf32>) -> tensor<16777216xf32>
  return %1 : tensor<16777216xf32>
}
}
"""
HALF = Cluster(
    links=tuple(LinkOverride(link=f"dim1.{end}.3", bandwidth_scale=0.5) for end in ("up", "down"))
)


def across_then_inside(tmp_path: Path, imperfect: Cluster | None) -> Prediction:
    """Return a step that sums across nodes first, over NICs of 50 GB/s, and then in nodes."""
    file = tmp_path / "step.mlir"
    file.write_text(ACROSS_THEN_INSIDE)
    return hespas.predict(file, cluster="16xH100_80GB", fidelity="exported", imperfect=imperfect)


def test_a_slow_link_is_not_blamed_on_the_links_behind_it(tmp_path: Path) -> None:
    perfect = {row.dimension: row for row in communication_rows(across_then_inside(tmp_path, None))}
    prediction = across_then_inside(tmp_path, HALF)
    rows = {row.dimension: row for row in communication_rows(prediction)}
    # The NIC of device 3 has half of 50 GB/s; NVLink is as fast as ever.
    assert 0.9 * 25e9 < (rows["1"].bytes_per_s or 0.0) <= 25e9
    assert rows["0"].bytes_per_s == pytest.approx(perfect["0"].bytes_per_s)
    assert [row.waiting_s for row in rows.values()] == [0.0, 0.0]
    (warning,) = (each for each in prediction.warnings if "wait" in each)
    assert "of the step for device 3, whose communication is shown" in warning


def test_waiting_for_others_is_not_transferring(tmp_path: Path) -> None:
    perfect = {row.dimension: row for row in communication_rows(across_then_inside(tmp_path, None))}
    prediction = across_then_inside(tmp_path, HALF)
    assert prediction.timeline is not None
    other = prediction.timeline.of_device(0)
    shown = replace(prediction, timeline=replace(prediction.timeline, classes=(other,)))
    rows = {row.dimension: row for row in communication_rows(shown)}
    late_s = 2 / 2 * rows["1"].bytes / 25e9 - rows["1"].time_s
    assert rows["0"].waiting_s == pytest.approx(late_s, rel=0.05)
    assert rows["0"].bytes_per_s == pytest.approx(perfect["0"].bytes_per_s)
    assert "   transfer    waiting    exposed" in run_text(run_report(shown))
    assert "waiting" not in run_text(run_report(across_then_inside(tmp_path, None)))


def test_the_table_says_what_is_waited_for(tmp_path: Path) -> None:
    text = run_text(run_report(predicted(tmp_path, WHOLE)))
    assert "Communication, by axis" in text
    assert "longest waited for: all_reduce all 8, by region_2" in text


def test_a_program_that_does_not_communicate_has_no_table(tmp_path: Path) -> None:
    file = tmp_path / "p.mlir"
    file.write_text("func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
                    "  return %a : tensor<8xf32>\n}\n")  # fmt: skip
    prediction = hespas.predict(file, "H100_80GB")
    assert not communication_rows(prediction)
    assert "Communication" not in run_text(run_report(prediction))
