"""Networks are counted and computed by the same operations."""

from __future__ import annotations

from inspect import signature

import pytest

from hespas.models.network import ROW, Net, Shape, Shapes
from hespas.models.steps.arrays import Arrays


def test_shapes_and_arrays_have_the_same_operations() -> None:
    fields = {"counted", "copies", "cached", "source", "is_prompt"}
    names = {name for name in dir(Shapes) if not name.startswith("_")} - fields
    for name in names:
        assert callable(getattr(Arrays, name, None)), name


@pytest.mark.parametrize("name", ["contract", "convolve", "join", "repeat"])
def test_their_arguments_are_the_same(name: str) -> None:
    own, other = (signature(getattr(kind, name)).parameters for kind in (Shapes, Arrays))
    assert list(own) == list(other)


def test_a_product_has_two_flops_for_each_pair() -> None:
    ops = Shapes()
    made = Net(ops).linear("dense", Shape((3, 5)), (ROW, 7))
    assert made.shape == (3, 7)
    assert ops.counted.flops == 2 * 3 * 5 * 7
    assert ops.counted.weights["dense.weight"].dims == ((ROW, 5), (ROW, 7))


def test_layers_are_counted_as_often_as_they_are_repeated() -> None:
    ops = Shapes()
    Net(ops).repeat("layers", 4, lambda layer, x: layer.linear("dense", x, (ROW, 5)), Shape((1, 5)))
    assert ops.counted.weights["layers.*.dense.weight"].elements == 4 * 25
    assert ops.counted.flops == 4 * 2 * 25


def test_shapes_are_cut_as_arrays_are() -> None:
    x = Shape((2, 6, 3))
    assert x[:, 0].shape == (2, 3)
    assert x[:, None, 1:4].shape == (2, 1, 3, 3)
    assert (x * Shape((3,)) + 1).shape == (2, 6, 3)
