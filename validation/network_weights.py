"""Put the weights of networks that are no decoders into hespas' own programs, and run them.

Weights have the names of transformers and diffusers already: products are stored the other way
round there, and channels of images before pixels.
"""

# JAX's own types are only partly known.
# pyright: basic
# ruff: noqa: PLC0415

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NAMES = {
    "input_ids": "inputs",
    "decoder_input_ids": "inputs",
    "input_features": "source",
    "pixel_values": "image",
    "hidden_states": "image",
    "encoder_hidden_states": "text",
    "pooled_projections": "pooled",
    "sample": "image",
    "timestep": "step",
    "class_labels": "label",
    "guidance": "guidance",
    "text_embeds": "pooled",
    "time_ids": "times",
}
"""What hespas calls that which goes in."""


def _own(weight: Any, stored: Array) -> Array:
    shape = tuple(size for _, size in weight.dims)
    match weight.kind:
        case "linear":
            return stored.T.reshape(shape)
        case "kernel":
            return np.moveaxis(stored, (0, 1), (-1, -2))
        case _:
            return stored.reshape(shape)


def _weights(network: Any, tensors: Mapping[str, Array]) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for path, weight in network.weights.items():
        names = [path.replace("*", str(index)) for index in range(weight.copies)]
        copies = [_own(weight, tensors[name]) for name in names]
        is_stacked = "*" in path and weight.copies > 1
        made[path if is_stacked else names[0]] = np.stack(copies) if is_stacked else copies[0]
    used = {
        path.replace("*", str(at))
        for path, each in network.weights.items()
        for at in range(each.copies)
    }
    if unused := set(tensors) - used:
        raise ValueError(f"{min(unused)} is of no use")
    return made


def _given(given: Mapping[str, Any]) -> dict[str, Array]:
    has_source = "decoder_input_ids" in given
    made: dict[str, Array] = {}
    for name, array in (dict(given) | dict(given.get("added_cond_kwargs", {}))).items():
        if name in NAMES:
            own = "source" if has_source and name == "input_ids" else NAMES[name]
            is_first = name in {"pixel_values", "hidden_states", "sample"} and array.ndim == 4
            is_first = is_first or name == "input_features"
            made[own] = np.moveaxis(array, 1, -1) if is_first else array
    return made


def _resnet(net: Any, tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the weights and the running statistics of a ResNet by hespas' names."""
    weights: dict[str, Array] = {
        "dense_kernel": tensors["classifier.1.weight"].T,
        "dense_bias": tensors["classifier.1.bias"],
    }
    statistics: dict[str, Array] = {}
    for layer in net.convolutions:
        match = re.fullmatch(r"stage(\d+)_block(\d+)_(\w+)", layer.name)
        path = "resnet.embedder.embedder"
        if match is not None:
            stage, block = int(match[1]) - 1, int(match[2]) - 1
            part = "shortcut" if match[3] == "shortcut" else f"layer.{match[3]}"
            path = f"resnet.encoder.stages.{stage}.layers.{block}.{part}"
        kernel = tensors[f"{path}.convolution.weight"]
        weights[f"{layer.name}_kernel"] = np.moveaxis(kernel, (0, 1), (-1, -2))
        for name, own in (("weight", "scale"), ("bias", "bias")):
            weights[f"{layer.name}_{own}"] = tensors[f"{path}.normalization.{name}"]
        for name, own in (("running_mean", "mean"), ("running_var", "variance")):
            statistics[f"{layer.name}_{own}"] = tensors[f"{path}.normalization.{name}"]
    return weights, statistics


def outputs(
    fields: Mapping[str, Any], tensors: Mapping[str, Array], given: Mapping[str, Array]
) -> Array:
    """Return what a network of a configuration's fields makes, in f32."""
    import jax

    from hespas.models.configuration import configured
    from hespas.models.model import MeshAxes
    from hespas.models.network_model import Learning
    from hespas.models.resnet_layers import ResNet
    from hespas.models.steps.arrays import Program
    from hespas.models.steps.resnet import Forward
    from hespas.models.steps.sharding import Divided

    network: Any = configured(fields, location="config.json", name="small").model
    samples = _given(given)
    if isinstance(network, ResNet):
        forward: Any = Forward(network=network, dtype="float32", axes=None)
        weights, statistics = _resnet(network, tensors)
        with jax.default_matmul_precision("highest"):
            made = jax.jit(lambda *given: forward(*given)[0])(weights, statistics, samples["image"])
            return np.asarray(made)
    if hasattr(network.design, "kinds"):
        samples["kinds"] = np.zeros_like(samples["inputs"])
    batch = len(next(iter(samples.values())))
    tokens = samples.get("inputs", samples.get("text"))
    run = Learning(
        mesh=MeshAxes(axes=(("data", 1),)),
        batch=batch,
        sequence=None if tokens is None else tokens.shape[1],
        source=samples["source"].shape[1] if "source" in samples else None,
        image=64,
        attention="unfused",
        remat="none",
        scan=True,
        dtype="f32",
    )
    network = replace(network, run=run)
    divided = Divided(mesh=run.mesh, sizes=network.sizes, axes=network.axes)
    program = Program(model=network, divided=divided)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.default_matmul_precision("highest"), jax.set_mesh(mesh):
        made = np.asarray(jax.jit(program.made)(_weights(network, tensors), samples))
    return np.moveaxis(made, -1, 1) if made.ndim == 4 else made
