"""Layers of convolutional networks, in either layout, as validation/convolutional.py puts them."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, nn

Shape = tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Layers:
    """The layers of a network, of ``axes`` dimensions, in one layout and type.

    Parameters are those that are ``given``, in the order of their use; without any, ``shapes``
    collects what they are to be.
    """

    is_features_first: bool
    dtype: Any
    axes: int = 2
    given: Sequence[Any] | None = None
    shapes: list[Any] = field(default_factory=list[Any])
    used: int = 0

    @property
    def feature(self) -> int:
        """The dimension of features."""
        return 1 if self.is_features_first else self.axes + 1

    @property
    def spatial(self) -> Shape:
        """The dimensions of places."""
        return tuple(range(2, self.axes + 2) if self.is_features_first else range(1, self.axes + 1))

    def image(self, batch: int, features: int, size: int) -> Any:
        """Return what a batch of images is."""
        sizes = (size,) * self.axes
        shape = (features, *sizes) if self.is_features_first else (*sizes, features)
        return jax.ShapeDtypeStruct((batch, *shape), self.dtype)

    def parameter(self, *shape: int, dtype: Any = None) -> Any:
        """Return the next parameter."""
        kind = dtype or self.dtype
        if self.given is None:
            self.shapes.append(jax.ShapeDtypeStruct(shape, kind))
            return jnp.zeros(shape, kind)
        self.used += 1
        return self.given[self.used - 1]

    def spread(self, values: Any, image: Any) -> Any:
        """Return a vector of features in a shape that broadcasts to an image."""
        shape = [1] * image.ndim
        shape[self.feature] = values.shape[0]
        return values.reshape(shape)

    def convolution(
        self, image: Any, features: int, window: int = 3, stride: int = 1, groups: int = 1
    ) -> Any:
        """Convolve and add a bias."""
        names = "DHW"[3 - self.axes :]
        taken, sizes = image.shape[self.feature] // groups, (window,) * self.axes
        first = self.is_features_first
        shape = (features, taken, *sizes) if first else (*sizes, taken, features)
        layout = ("NC" + names, "OI" + names) if first else ("N" + names + "C", names + "IO")
        low = window // 2 if window % 2 else 0
        made = lax.conv_general_dilated(
            image,
            self.parameter(*shape),
            (stride,) * self.axes,
            [(low, low)] * self.axes,
            dimension_numbers=(*layout, layout[0]),
            feature_group_count=groups,
        )
        return made + self.spread(self.parameter(features), made)

    def upsampled(self, image: Any, features: int) -> Any:
        """Double an image by a transposed convolution."""
        first, names = self.is_features_first, "DHW"[3 - self.axes :]
        taken, sizes = image.shape[self.feature], (4,) * self.axes
        shape = (features, taken, *sizes) if first else (*sizes, taken, features)
        layout = ("NC" + names, "OI" + names) if first else ("N" + names + "C", names + "IO")
        kernel, strides = self.parameter(*shape), (2,) * self.axes
        numbers = (*layout, layout[0])
        return lax.conv_transpose(image, kernel, strides, "SAME", dimension_numbers=numbers)

    def scaled(self, values: Any, image: Any) -> Any:
        """Return normalised values with a scale and an offset for each feature."""
        count = image.shape[self.feature]
        scale, offset = (self.parameter(count, dtype=jnp.float32) for _ in range(2))
        scaled = values.reshape(image.shape) * self.spread(scale, image)
        return (scaled + self.spread(offset, image)).astype(image.dtype)

    def group_norm(self, image: Any) -> Any:
        """Normalise over places and the features of each of 32 groups."""
        count, values = image.shape[self.feature], image.astype(jnp.float32)
        if self.is_features_first:
            values = values.reshape(image.shape[0], 32, count // 32, *image.shape[2:])
            over = tuple(range(2, values.ndim))
        else:
            values = values.reshape(*image.shape[:-1], 32, count // 32)
            over = (*range(1, values.ndim - 2), values.ndim - 1)
        return self.scaled(_normalised(values, over), image)

    def batch_norm(self, image: Any) -> Any:
        """Normalise over images and places."""
        over = tuple(at for at in range(image.ndim) if at != self.feature)
        return self.scaled(_normalised(image.astype(jnp.float32), over), image)

    def layer_norm(self, image: Any) -> Any:
        """Normalise over features."""
        return self.scaled(_normalised(image.astype(jnp.float32), (self.feature,)), image)

    def dense(self, values: Any, features: int) -> Any:
        """Multiply the last dimension by a matrix and add a bias."""
        return values @ self.parameter(values.shape[-1], features) + self.parameter(features)

    def over_features(self, image: Any, change: Callable[[Any], Any]) -> Any:
        """Apply what wants features last."""
        if not self.is_features_first:
            return change(image)
        return jnp.moveaxis(change(jnp.moveaxis(image, 1, -1)), -1, 1)

    def attention(self, image: Any, heads: int = 8) -> Any:
        """Add attention over places."""
        batch, width = image.shape[0], image.shape[self.feature]

        def attend(values: Any) -> Any:
            tokens = values.reshape(batch, -1, width)
            split = [
                self.dense(tokens, width).reshape(batch, -1, heads, width // heads)
                for _ in range(3)
            ]
            scores = jnp.einsum("nqhd,nkhd->nhqk", split[0], split[1]).astype(jnp.float32)
            weights = nn.softmax(scores / (width // heads) ** 0.5).astype(values.dtype)
            mixed = jnp.einsum("nhqk,nkhd->nqhd", weights, split[2]).reshape(batch, -1, width)
            return self.dense(mixed, width).reshape(values.shape)

        return image + self.over_features(self.group_norm(image), attend)

    def residual(self, image: Any, features: int, time: Any = None) -> Any:
        """Return a block of a diffusion model: two norms and convolutions beside the image."""
        made = self.convolution(nn.silu(self.group_norm(image)), features)
        if time is not None:
            shape = [image.shape[0]] + [1] * (image.ndim - 1)
            shape[self.feature] = features
            made = made + self.dense(nn.silu(time), features).reshape(shape)
        made = self.convolution(nn.silu(self.group_norm(made)), features)
        if image.shape[self.feature] != features:
            image = self.convolution(image, features, 1)
        return image + made

    def doubled(self, image: Any) -> Any:
        """Double an image by repeating its elements."""
        for axis in self.spatial:
            image = jnp.repeat(image, 2, axis=axis)
        return image


def _normalised(values: Any, over: Shape) -> Any:
    centred = values - values.mean(over, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(over, keepdims=True) + 1e-5)
