from __future__ import annotations

import pytest

from hespas.errors import ConfigError
from hespas.models.model import parse_mesh
from hespas.models.placement import in_default_order, parse_place, placed

DIMENSIONS = (8, 64)


@pytest.mark.parametrize(
    ("mesh", "place", "order"),
    [
        ("tp=8,pipe=64", "tp=0,pipe=1", "pipe=64,tp=8"),
        ("pipe=8,tp=8,fsdp=8", "pipe=0,tp=1,fsdp=1", "fsdp=8,tp=8,pipe=8"),
        ("tp=4,fsdp=16,pipe=8", "tp=0,fsdp=0+1,pipe=1", "pipe=8,fsdp=16,tp=4"),
        ("tp=4,context=2,pipe=64", "context=0,tp=0,pipe=1", "pipe=64,tp=4,context=2"),
        ("fsdp=512", "fsdp=0+1", "fsdp=512"),
    ],
)
def test_axes_are_ordered_as_they_are_placed(mesh: str, place: str, order: str) -> None:
    assert str(placed(parse_mesh(mesh), parse_place(place), DIMENSIONS)) == order


@pytest.mark.parametrize(
    ("mesh", "place", "refusal"),
    [
        ("tp=16,pipe=32", "tp=0,pipe=1", "tp=16 does not fit dimension 0 of 8 devices;"),
        ("tp=4,pipe=128", "tp=0,pipe=1", "dimension 0 has 8 devices, and the axes that lie"),
        ("tp=8,pipe=64", "tp=0", "does not say where pipe of the mesh tp=8,pipe=64 lies; add"),
        ("tp=8,pipe=64", "tp=0,pip=1", "names pip, which the mesh tp=8,pipe=64 has not"),
        ("tp=8,pipe=64", "tp=0,pipe=2", "the network has 2 dimensions; give one from 0 to 1"),
        ("tp=8,pipe=32", "tp=0,pipe=1", "dimension 1 has 64 devices, and the axes that lie there"),
        ("tp=4,fsdp=4,pipe=32", "tp=0,fsdp=0,pipe=1", "fsdp=4 does not fit dimension 0"),
    ],
)
def test_axes_that_do_not_fit_are_refused(mesh: str, place: str, refusal: str) -> None:
    with pytest.raises(ConfigError) as error:
        placed(parse_mesh(mesh), parse_place(place), DIMENSIONS)
    assert refusal in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("tp", "is not AXIS=DIMENSION"),
        ("tp=0+2", "leaves dimensions out"),
        ("tp=0,tp=1", "names tp twice"),
        ("tp=1+0", "leaves dimensions out"),
    ],
)
def test_what_is_no_place_is_refused(text: str, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        parse_place(text)


def test_frameworks_put_tensor_parallelism_nearest_and_stages_farthest() -> None:
    mesh = parse_mesh("tp=8,context=2,pipe=8,data=2,fsdp=2")
    assert str(in_default_order(mesh)) == "pipe=8,data=2,fsdp=2,context=2,tp=8"
