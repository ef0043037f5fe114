"""Products with weights of few bits: what they are stored as, and the values that they have."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hespas.errors import ConfigError
from hespas.models.catalogue import model_named
from hespas.models.steps.products import STORED_TYPES, Grouped, product, widened

SMALL = {
    "embedding": "128",
    "heads": "4",
    "kv_heads": "2",
    "head_size": "32",
    "layers": "1",
    "mlp": "256",
    "vocabulary": "256",
    "context": "32",
    "mesh": "tp=1",
}
EXPERTS = {"experts": "4", "expert_mlp": "48", "chosen": "2"}


def stored(name: str, *, rounds_rows: bool = False) -> Grouped:
    values, scales = STORED_TYPES[name]
    key = jax.random.key(1)
    group = {"mxfp4": 32, "nvfp4": 16, "int4": 128, "int4_32": 32}[name]
    return Grouped(
        values=jax.random.randint(key, (8, 128), -4, 5).astype(values),
        scales=jnp.full((8, 128 // group), 0.5).astype(scales),
        name=name,
        rounds_rows=rounds_rows,
    )


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int4", "int4_32"])
def test_weights_are_their_values_times_the_scale_of_their_group(name: str) -> None:
    weight = stored(name)
    wide = widened(weight, jnp.float32)
    np.testing.assert_array_equal(wide, weight.values.astype(jnp.float32) / 2)
    x = jax.random.normal(jax.random.key(2), (2, 3, 128))
    np.testing.assert_allclose(product("bse,ef->bsf", x, weight), x @ wide.T, rtol=1e-4, atol=1e-4)


def test_rows_that_are_rounded_too_keep_four_bits_of_each_number() -> None:
    x = jax.random.normal(jax.random.key(2), (2, 3, 128))
    exact = product("bse,ef->bsf", x, stored("nvfp4"))
    rounded = product("bse,ef->bsf", x, stored("nvfp4", rounds_rows=True))
    error = jnp.linalg.norm(rounded - exact) / jnp.linalg.norm(exact)
    assert 0.01 < error < 0.2


def weights_of(name: str, **options: str) -> Any:
    return model_named(name).step(SMALL | options).arguments[0]["layers_first"][0]


def test_each_part_has_its_format() -> None:
    weights = weights_of(
        "mixtral-8x7b-decode", **EXPERTS, weight_dtype="mxfp4", attention_dtype="f8"
    )
    assert weights["experts_up"].name == "mxfp4"
    assert isinstance(weights["output"], tuple)
    assert weights["router"].dtype == jnp.bfloat16
    # A device's experts have groups of their own: 48 numbers are two groups of 32.
    assert weights["experts_down"].scales.shape == (4, 128, 2)


def test_groups_that_a_mesh_cuts_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups of 32 numbers"):
        weights_of("llama3-8b-decode", weight_dtype="mxfp4", mesh="tp=4", mlp="192")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"expert_dtype": "f8"}, "there are no experts"),
        ({"activation_dtype": "nvfp4"}, "no weights are in nvfp4"),
        ({"weight_dtype": "f7"}, "f7"),
    ],
)
def test_types_without_effect_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        weights_of("llama3-8b-decode", **options)
