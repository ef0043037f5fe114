# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Weights of a part: as many bytes as JAX's shardings give."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from math import prod
from typing import Any

import jax
import pytest

from hespas.models.catalogue import model_named
from hespas.models.division import Division, trained_bytes
from hespas.models.model import EXPERT, Part, PartProgram, parse_mesh
from hespas.prediction.cutting import divided_by

MESHES = ("tp=2", "fsdp=4,tp=2", "fsdp=2,context=2,tp=2", "data=2,fsdp=2")
MODELS = (
    ("llama3-70b", MESHES, {}),
    ("llama3-70b", ("fsdp=4,tp=2",), {"lora_rank": "8"}),
    ("Qwen/Qwen3-30B-A3B", ("expert=4,fsdp=2,tp=2", "expert=8"), {}),
    ("deepseek-ai/DeepSeek-V2", ("expert=4,fsdp=2,tp=2",), {}),
    ("nvidia/Nemotron-H-8B-Base-8K", ("fsdp=4,tp=2",), {}),
    ("google/gemma-3-27b-it", MESHES, {}),
)


def held_bytes(arrays: Any, along: str | None) -> int:
    """Return a device's bytes of arrays; with an axis, of those that it divides."""
    return sum(
        prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(arrays)
        if along is None
        or any(along == part or along in (part or ()) for part in leaf.sharding.spec)
    )


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _, _ in MODELS))
def test_a_device_holds_what_shardings_say(name: str) -> None:
    model = model_named(name)
    cases = [(mesh, more) for own, meshes, more in MODELS if own == name for mesh in meshes]
    programs = ((PartProgram.BOTH, 0), (PartProgram.UPDATE, 1))
    ends = ((True, False), (False, False), (False, True))
    for (mesh, more), (program, argument), (is_first, is_last) in product(cases, programs, ends):
        texts = {"scan": "true", "mesh": mesh, "batch": "8", **more}
        part = Part(
            mesh=divided_by(parse_mesh(mesh), program),
            layers=3,
            is_first=is_first,
            is_last=is_last,
            program=program,
        )
        step = model.part_step(texts, part)
        for along in (None, EXPERT):
            held = trained_bytes(model.with_options(texts), part, along=along)
            assert held == held_bytes(step.arguments[argument], along)


def test_an_axis_divides_the_first_dimension_that_names_it() -> None:
    division = Division(
        mesh=parse_mesh("fsdp=4,tp=2"),
        sizes={"embedding": 16, "heads": 8, "norm": 3},
        axes={"embedding": ("fsdp", "tp"), "heads": ("tp", "context")},
    )
    assert division.axes_of("heads", "embedding", None) == (("tp",), ("fsdp",), ())
    assert division.held_elements("heads", "embedding", "norm") == 4 * 4 * 3


def test_it_imports_no_jax() -> None:
    code = "import sys, hespas.models.division; raise SystemExit('jax' in sys.modules)"
    subprocess.run((sys.executable, "-c", code), check=True)
