"""What holds of a program whose partitions run on other devices than those of their numbers."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hespas
from hespas.prediction.figures.communication import communication_rows
from hespas.prediction.result import Prediction
from hespas.program.groups import DeviceOrder, groups_along, on_devices

MESH = (("a", 2), ("b", 2), ("c", 2))
COUNT = 8
ORDERS = (
    *[DeviceOrder(dimensions=(2, 2, 2), permutation=axes) for axes in permutations(range(3))],
    DeviceOrder(dimensions=(2, 4), permutation=(1, 0)),
    DeviceOrder(dimensions=(4, 2), permutation=(1, 0)),
)
AXES = (("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c"))
HEAD = """module @step attributes {{
  mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32{more}}} {{
func.func @main(%v0: tensor<4096xf32>) -> tensor<4096xf32> {{
"""
REDUCE = """  %v{to} = "stablehlo.all_reduce"(%v{of}) <{{
    channel_handle = #stablehlo.channel_handle<handle = {channel}, type = 1>,
    use_global_device_ids, replica_groups = dense<{groups}> : tensor<{rows}x{columns}xi64>}}> ({{
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }}) : (tensor<4096xf32>) -> tensor<4096xf32>
"""
PERMUTE = """  %v{to} = "stablehlo.collective_permute"(%v{of}) <{{
    channel_handle = #stablehlo.channel_handle<handle = {channel}, type = 1>,
    source_target_pairs = dense<{pairs}> : tensor<{rows}x2xi64>}}>
    : (tensor<4096xf32>) -> tensor<4096xf32>
"""
Groups = tuple[tuple[int, ...], ...]


def program(collectives: list[tuple[str, Groups]], order: DeviceOrder | None = None) -> str:
    kept = "" if order is None else f'hespas.device_order = "{order}"'
    more = f", mhlo.frontend_attributes = {{{kept}}}" if kept else ""
    lines = [HEAD.format(more=more)]
    for number, (kind, groups) in enumerate(collectives):
        form = REDUCE if kind == "all_reduce" else PERMUTE
        listed = [list(group) for group in groups]
        lines.append(
            form.format(
                to=number + 1,
                of=number,
                channel=number + 1,
                groups=listed,
                pairs=listed,
                rows=len(groups),
                columns=len(groups[0]),
            )
        )
    lines.append(f"  return %v{len(collectives)} : tensor<4096xf32>\n}}\n}}\n")
    return "".join(lines)


def predicted(text: str, system: str, node: str, model: str = "hespas") -> Prediction:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "step.mlir"
        file.write_text(text)
        return hespas.predict(file, node, system, fidelity="exported", model=model)


def ring(groups: Groups) -> Groups:
    """Return pairs that hand on around each group."""
    return tuple((one, two) for g in groups for one, two in zip(g, g[1:] + g[:1], strict=True))


@st.composite
def collectives(draw: st.DrawFn) -> list[tuple[str, Groups]]:
    drawn: list[tuple[str, Groups]] = []
    for _ in range(draw(st.integers(1, 3))):
        groups = groups_along(MESH, draw(st.sampled_from(AXES)))
        is_sum = draw(st.booleans())
        drawn.append(("all_reduce", groups) if is_sum else ("collective_permute", ring(groups)))
    return drawn


@given(drawn=collectives(), order=st.sampled_from(ORDERS))
@settings(max_examples=15, deadline=None)
def test_where_all_links_are_equal_the_order_does_not_matter(
    drawn: list[tuple[str, Groups]], order: DeviceOrder
) -> None:
    for model in ("hespas", "astra-sim"):
        times = {
            predicted(program(drawn, each), "H100_80GB_8GPU", "H100_80GB", model).step_time_s
            for each in (None, order)
        }
        assert len(times) == 1


@given(drawn=collectives(), order=st.sampled_from(ORDERS))
@settings(max_examples=15, deadline=None)
def test_an_order_is_the_same_as_other_numbers_in_the_groups(
    drawn: list[tuple[str, Groups]], order: DeviceOrder
) -> None:
    def relabelled(kind: str, groups: Groups) -> Groups:
        moved = on_devices(groups, order)
        return tuple(tuple(sorted(each)) for each in moved) if kind == "all_reduce" else moved

    written = [(kind, relabelled(kind, groups)) for kind, groups in drawn]
    kept = predicted(program(drawn, order), "2xTPUv5e_2x2", "TPUv5e")
    again = predicted(program(written), "2xTPUv5e_2x2", "TPUv5e")
    assert kept.step_time_s == again.step_time_s


@pytest.mark.parametrize("kind", ["all_reduce", "collective_permute"])
def test_what_stays_inside_a_slice_does_not_use_the_network_between_slices(kind: str) -> None:
    """Of a mesh (pipe=2, data=2 x 2) with the axis between slices in the second one."""
    order = DeviceOrder(dimensions=(2, 2, 2), permutation=(1, 0, 2))
    pipe, between, inside = (groups_along(MESH, (name,)) for name in ("a", "b", "c"))
    dimensions: dict[str, set[str]] = {}
    for name, groups in (("pipe", pipe), ("between", between), ("inside", inside)):
        moved = groups if kind == "all_reduce" else ring(groups)
        prediction = predicted(program([(kind, moved)], order), "2xTPUv5e_2x2", "TPUv5e")
        dimensions[name] = {row.dimension for row in communication_rows(prediction)}
    assert dimensions == {"pipe": {"1"}, "between": {"2"}, "inside": {"0"}}
    # Without the order, what is along the first axis would go between slices.
    moved = pipe if kind == "all_reduce" else ring(pipe)
    wrong = predicted(program([(kind, moved)]), "2xTPUv5e_2x2", "TPUv5e")
    assert {row.dimension for row in communication_rows(wrong)} == {"2"}


def test_an_axis_keeps_its_name() -> None:
    order = DeviceOrder(dimensions=(2, 2, 2), permutation=(1, 0, 2))
    text = program([("all_reduce", groups_along(MESH, ("a",)))], order)
    text = text.replace("{hespas", '{hespas.mesh = "a=2,b=2,c=2", hespas', 1)
    rows = communication_rows(predicted(text, "2xTPUv5e_2x2", "TPUv5e"))
    assert [row.axis for row in rows] == ["a"]
