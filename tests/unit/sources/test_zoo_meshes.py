"""A model's mesh over all devices of a cluster, where the user gives none."""

from __future__ import annotations

import pytest

from hespas.sources.options import ModelOptions
from hespas.sources.source import ModelSource, find_source


def mesh_of(devices: int) -> str:
    found = find_source("llama3-70b", ModelOptions(), devices=devices)
    assert isinstance(found, ModelSource)
    return str(found.mesh)


@pytest.mark.parametrize(
    ("devices", "mesh"),
    [
        (64, "fsdp=64"),
        (8192, "fsdp=8192"),
        (24, "data=3,fsdp=8"),
        (16_384, "data=2,fsdp=8192"),
        (1_048_576, "data=128,fsdp=8192"),
    ],
)
def test_weights_are_divided_as_often_as_they_can_be(devices: int, mesh: str) -> None:
    assert mesh_of(devices) == mesh
