"""Programs of networks: what is written token by token is what is written at once."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.models.encoders import T5, Tower, Whisper
from hespas.models.model import MeshAxes
from hespas.models.network import Net
from hespas.models.network_model import Learning, Network, Reading, Writing
from hespas.models.steps import arrays
from hespas.models.steps.arrays import Arrays, Program
from hespas.models.steps.sharding import Divided
from hespas.program.devices import communication_ops
from hespas.program.program import all_ops
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.work.expand import expand, total

ONE = MeshAxes(axes=(("data", 1),))
TOWER = Tower(embedding=16, layers=2, heads=2, mlp=24, activation="gelu", epsilon=1e-5)
DESIGNS: dict[str, Any] = {
    "whisper": Whisper(
        encoder=TOWER,
        decoder=TOWER,
        vocabulary=32,
        bins=4,
        rows=6,
        positions=12,
        is_scaled=False,
    ),
    "t5": T5(encoder=TOWER, decoder=TOWER, vocabulary=32, buckets=8, distance=16, tied=True),
}


def program_of(network: Network) -> Program:
    divided = Divided(mesh=ONE, sizes=network.sizes, axes=network.axes)
    return Program(model=network, divided=divided)


def drawn(leaf: Any, key: int) -> Any:
    values = np.random.default_rng(key).standard_normal(leaf.shape)
    numbers = np.abs(values * 9) % 30
    return (values if leaf.dtype == jnp.float32 else numbers).astype(leaf.dtype)


@pytest.mark.parametrize("name", DESIGNS)
def test_tokens_written_one_by_one_are_those_written_at_once(name: str) -> None:
    tokens, design = 5, DESIGNS[name]
    how: dict[str, Any] = {"mesh": ONE, "batch": 2, "attention": "unfused", "dtype": "f32"}
    how["source"] = 6 if name == "t5" else None
    whole = Network(design=design, run=Learning(sequence=tokens, **how))
    read = Network(design=design, run=Reading(sequence=tokens - 1, **how))
    write = Network(design=design, run=Writing(context=tokens, **how))
    leaves = program_of(whole).weights("float32")
    weights = {path: drawn(leaf, at) for at, (path, leaf) in enumerate(leaves.items())}
    given = {key: drawn(leaf, 77) for key, leaf in program_of(whole).batch().items()}
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        expected = np.argmax(jax.jit(program_of(whole).made)(weights, given), -1)
        prompt = {"source": given["source"], "inputs": given["inputs"][:, :-1]}
        before, caches = jax.jit(partial(arrays._reading, program_of(read)))(weights, prompt)
        assert (before[:, 0] == expected[:, -2]).all()
        shapes = {path: shape[1] for path, (shape, _) in write.caches.items()}
        padded = {
            path: {
                part: np.pad(
                    leaf,
                    (
                        (0, 0),
                        (0, 0),
                        (0, shapes[path.replace("0", "*").replace("1", "*")] - leaf.shape[2]),
                        (0, 0),
                    ),
                )
                for part, leaf in own.items()
            }
            for path, own in caches.items()
        }
        last = {"inputs": given["inputs"][:, -1:], "position": jnp.asarray(tokens - 1, jnp.int32)}
        after, _ = jax.jit(partial(arrays._writing, program_of(write)))(weights, padded, last)
        assert (after[:, 0] == expected[:, -1]).all()


def test_a_loop_of_layers_computes_what_single_ones_do() -> None:
    run = Learning(mesh=ONE, batch=2, sequence=5, attention="unfused", dtype="f32")
    single = Network(design=DESIGNS["whisper"], run=run)
    loop = replace(single, run=replace(run, scan=True))
    given = {key: drawn(leaf, 5) for key, leaf in program_of(loop).batch().items()}
    stacked = {
        path: drawn(leaf, at)
        for at, (path, leaf) in enumerate(program_of(loop).weights("float32").items())
    }
    alone = {
        path.replace("*", str(index)): leaf[index] if "*" in path else leaf
        for path, leaf in stacked.items()
        for index in range(2)
    }
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        losses = (
            float(jax.jit(program_of(loop).loss)(stacked, given)),
            float(jax.jit(program_of(single).loss)(alone, given)),
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_products_of_a_device_are_its_share_of_those_counted() -> None:
    given = {"mesh": "fsdp=2,tp=2", "batch": "1", "attention": "unfused", "remat": "none"}
    name = "openai/whisper-tiny"
    given["sequence"] = "7"
    settings: Any = model_named(name).with_options(given)
    program = load_source(partitioned(export_model(name, given)).content, name=name)
    ops = [op for op in all_ops(program) if op.kind in {"dot", "dot_general", "convolution"}]
    executed = sum(count for _, count in total(expand(ops)).flops)
    # The first convolution has no gradient of what goes in, and padding is not multiplied.
    assert executed == pytest.approx(3 * settings.flops * 2 / 4, rel=0.08)
    assert Counter(op.kind for op in communication_ops(program))["all_reduce"] > 0


def test_blocks_of_equal_arrays_are_one_function() -> None:
    run = Learning(mesh=ONE, batch=1, sequence=4, attention="unfused", dtype="f32")
    program = program_of(Network(design=DESIGNS["whisper"], run=run))

    def block(net: Net, x: Any, *, width: int) -> Any:
        return net.linear("product", x, ("", width), summed=("",), bias=False)

    def forward(weights: Any, x: Any) -> Any:
        ops = Arrays(network=program.model, divided=program.divided, weights=weights)
        return [Net(ops, path).call(block, x, width=8) for path in ("first", "second")]

    weights = {f"{path}.product.weight": jnp.zeros((4, 8)) for path in ("first", "second")}
    first, second = jax.make_jaxpr(forward)(weights, jnp.zeros((1, 4))).jaxpr.eqns
    assert first.params["name"] == "block"
    assert first.params["jaxpr"] is second.params["jaxpr"]
