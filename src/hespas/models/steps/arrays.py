"""The steps of networks that are no decoders, in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from math import log
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from hespas.base.frozen import frozen
from hespas.models.kernels import platform_of
from hespas.models.model import Step
from hespas.models.network import SOURCE, Block, Keys, Net, Weight
from hespas.models.network_model import (
    Learning,
    Network,
    Reading,
    Writing,
    made_of,
)
from hespas.models.recommender import Dlrm
from hespas.models.steps.attention import SAVED, by_head, earlier
from hespas.models.steps.context import Sharing, context_attention, fused_blocks
from hespas.models.steps.layer import FUNCTIONS
from hespas.models.steps.objectives import OBJECTIVES, target_shape
from hespas.models.steps.remat import rematerialised
from hespas.models.steps.sharding import Divided, dtype_named
from hespas.models.steps.sparse import bags, sparse_training
from hespas.models.steps.training import training

Weights = Mapping[str, Any]
_LOWEST = -1e30
_PERIOD = 10000.0


@frozen
class Caches:
    """Keys and values by layer, (batch, heads, tokens, size).

    ``written`` are new. A step that reads has none before it. ``position`` is that of the first new
    token.
    """

    cached: Weights
    written: dict[str, dict[str, jax.Array]]
    position: jax.Array | None = None


@frozen
class Arrays:
    """The operations of `hespas.models.network.Shapes` on JAX's arrays.

    ``called`` are the functions of blocks that are called more than once.
    """

    network: Network
    divided: Divided
    weights: Weights
    caches: Caches | None = None
    called: dict[Any, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> Any:
        """The type that is computed in."""
        return dtype_named(self.network.dtype)

    def scope(self, name: str) -> Any:
        """Name what is computed inside."""
        return jax.named_scope(name)

    def weight(self, path: str, _: Weight) -> jax.Array:
        """Return a weight in the type that is computed in."""
        return self.weights[path].astype(self.dtype)

    def contract(
        self, x: jax.Array, weight: jax.Array, count: int, *, is_tied: bool = False
    ) -> jax.Array:
        """Return the product over the last dimensions of ``x``."""
        own = tuple(range(x.ndim - count, x.ndim))
        first = weight.ndim - count if is_tied else 0
        contracted = (own, tuple(range(first, first + count)))
        return lax.dot_general(x, weight, (contracted, ((), ())))

    def convolve(self, x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
        """Return the convolution over pixels, or over a sequence."""
        axes = kernel.ndim - 2
        names = ("NHWC", "HWIO", "NHWC") if axes > 1 else ("NWC", "WIO", "NWC")
        pads = ((padding, padding),) * axes
        with jax.named_scope("convolution"):
            return lax.conv_general_dilated(
                x, kernel, (stride,) * axes, pads, dimension_numbers=names
            )

    def normalise(
        self, x: jax.Array, kind: str, epsilon: float = 0.0, groups: int = 1
    ) -> jax.Array:
        """Normalise in f32."""
        with jax.named_scope("norm"):
            wide, axes = x.astype(jnp.float32), (-1,)
            if kind == "unit":
                return (wide * lax.rsqrt(jnp.sum(wide * wide, -1, keepdims=True))).astype(x.dtype)
            if kind == "group":
                wide = wide.reshape(*x.shape[:-1], groups, -1)
                axes = (*range(1, x.ndim - 1), x.ndim)
            if kind != "rms":
                wide = wide - jnp.mean(wide, axes, keepdims=True)
            mean = jnp.mean(lax.square(wide), axes, keepdims=True)
            return (wide * lax.rsqrt(mean + epsilon)).reshape(x.shape).astype(x.dtype)

    def activate(self, x: jax.Array, name: str) -> jax.Array:
        """Apply a function to each number."""
        return FUNCTIONS[name](x)

    def attend(
        self,
        path: str,
        query: jax.Array,
        keys: Keys,
        *,
        scale: float,
        is_causal: bool = False,
        bias: jax.Array | None = None,
    ) -> jax.Array:
        """Return attention among the step's tokens, and cached ones."""
        query, (key, value) = query * jnp.asarray(scale, query.dtype), keys()
        caches = self.caches
        if caches is None or not is_causal:
            return self._attended(query, key, value, is_causal=is_causal, bias=bias)
        new = {"keys": jnp.swapaxes(key, 1, 2), "values": jnp.swapaxes(value, 1, 2)}
        if caches.position is None:
            caches.written[path] = new
            return self._attended(query, key, value, is_causal=True, bias=bias)
        zero, own = jnp.zeros((), jnp.int32), caches.cached[path]
        begin = (zero, zero, caches.position, zero)
        with jax.named_scope("cache"):
            caches.written[path] = {
                name: lax.dynamic_update_slice(own[name], rows, begin) for name, rows in new.items()
            }
        return self._over_cache(query, caches.written[path], bias)

    def cross(self, path: str, query: jax.Array, keys: Keys, *, scale: float) -> jax.Array:
        """Return attention to another sequence."""
        query, caches, name = (
            query * jnp.asarray(scale, query.dtype),
            self.caches,
            f"{path}{SOURCE}",
        )
        if caches is not None and name in caches.cached:
            caches.written[name] = caches.cached[name]
            return self._over_cache(query, caches.cached[name], None)
        key, value = keys()
        if caches is not None and not path.endswith("head"):
            own = {"keys": jnp.swapaxes(key, 1, 2), "values": jnp.swapaxes(value, 1, 2)}
            caches.written[name] = own
        return self._attended(query, key, value, is_causal=False, bias=None)

    def _attended(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        is_causal: bool,
        bias: jax.Array | None,
    ) -> jax.Array:
        divided = self.divided
        query, key, value = (
            checkpoint_name(divided.constrain(array, "batch", None, "heads", None), name)
            for array, name in zip((query, key, value), SAVED, strict=True)
        )
        if self.network.run.attention == "cudnn" and bias is None:
            sharing = Sharing(blocks=fused_blocks("cudnn"), saved="context", is_causal=is_causal)
            with jax.named_scope("fused"):
                return by_head(divided, partial(context_attention, sharing), (query, key, value))
        with jax.named_scope("softmax"):
            scores = jnp.einsum("bthd,bshd->bhts", query, key).astype(jnp.float32)
            scores = scores if bias is None else scores + bias
            if is_causal:
                scores = jnp.where(earlier(*scores.shape[-2:]), scores, _LOWEST)
            shares = jax.nn.softmax(scores, -1).astype(value.dtype)
            return checkpoint_name(jnp.einsum("bhts,bshd->bthd", shares, value), "context")

    def _over_cache(
        self, query: jax.Array, own: Mapping[str, jax.Array], bias: jax.Array | None
    ) -> jax.Array:
        """Return attention of one new token of each text."""
        with jax.named_scope("softmax"):
            scores = jnp.einsum("bthd,bhsd->bhts", query, own["keys"]).astype(jnp.float32)
            shares = jax.nn.softmax(scores if bias is None else scores + bias, -1)
            return jnp.einsum("bhts,bhsd->bthd", shares.astype(query.dtype), own["values"])

    def context(self, new: int) -> int:
        """Return how many tokens attention is among."""
        run = self.network.run
        return run.context if isinstance(run, Writing) else new

    def last(self, x: jax.Array) -> jax.Array:
        """Return the rows that have logits."""
        return x[:, -1:] if isinstance(self.network.run, Reading) else x

    def look_up(self, table: jax.Array, numbers: jax.Array) -> jax.Array:
        """Return rows of a table."""
        return table[numbers]

    def bags(self, tables: Sequence[jax.Array], rows: jax.Array, sizes: Sequence[int]) -> jax.Array:
        """Return a sum of rows for each table."""
        return bags(self.divided, tables, rows, sizes)

    def join(self, arrays: Sequence[jax.Array], axis: int) -> jax.Array:
        """Concatenate arrays."""
        return jnp.concatenate(arrays, axis)

    def repeated(self, x: jax.Array, batch: int) -> jax.Array:
        """Return an array for each sample of a batch."""
        return jnp.broadcast_to(x, (batch, *x.shape[1:]))

    def enlarge(self, x: jax.Array) -> jax.Array:
        """Return twice as many pixels each way."""
        return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)

    def waves(
        self,
        values: jax.Array,
        size: int,
        *,
        shift: float = 0.0,
        is_paired: bool = False,
        sines_first: bool = False,
    ) -> Any:
        """Return cosines and sines of values, periods up to 10000.

        Pairs have each twice, cosines and sines apart.
        """
        half = jnp.arange(size // 2, dtype=jnp.float32) / (size // 2 - shift)
        angles = values.astype(jnp.float32)[..., None] * jnp.exp(-log(_PERIOD) * half)
        if is_paired:
            both = (jnp.cos(angles), jnp.sin(angles))
            return tuple(jnp.repeat(wave, 2, -1).astype(self.dtype) for wave in both)
        waves = [jnp.cos(angles), jnp.sin(angles)]
        return jnp.concatenate(waves[::-1] if sines_first else waves, -1).astype(self.dtype)

    def places(self, first: int, count: int) -> jax.Array:
        """Return the numbers of as many places."""
        return first + jnp.arange(count)

    def buckets(
        self, queries: int, keys: int, sizes: tuple[int, int], *, is_causal: bool
    ) -> jax.Array:
        """Return the bucket of each distance between tokens.

        The queries are the last tokens. Source: C. Raffel et al., Exploring the Limits of Transfer
        Learning, 2020, section 2.1.
        """
        count, longest = sizes
        row = lax.broadcasted_iota(jnp.int32, (queries, keys), 0) + (keys - queries)
        distance = lax.broadcasted_iota(jnp.int32, (queries, keys), 1) - row
        begin = jnp.zeros_like(distance)
        if is_causal:
            distance = jnp.maximum(-distance, 0)
        else:
            count //= 2
            begin, distance = (distance > 0) * count, jnp.abs(distance)
        exact = count // 2
        share = jnp.log(jnp.maximum(distance, 1) / exact) / log(longest / exact)
        far = exact + (share * (count - exact)).astype(jnp.int32)
        return begin + jnp.where(distance < exact, distance, jnp.minimum(far, count - 1))

    def keep(self, x: jax.Array, name: str) -> jax.Array:
        """Name what rematerialisation may keep."""
        return checkpoint_name(x, name)

    def rows(self, x: jax.Array) -> jax.Array:
        """Ask for rows to be divided as the batch is."""
        return self.divided.constrain(x, "batch", *(None,) * (x.ndim - 1))

    def first(self, path: str) -> Net:
        """Return the first of several layers, to compute again."""
        begin = f"{path}.*."
        if not any(name.startswith(begin) for name in self.weights):
            return Net(self, f"{path}.0")
        own = {
            name: leaf[0] if name.startswith(begin) else leaf for name, leaf in self.weights.items()
        }
        return Net(replace(self, weights=own), f"{path}.*")

    def call(
        self, path: str, block: Callable[..., Any], inputs: Any, settings: Mapping[str, Any]
    ) -> Any:
        """Call the function of a block, which is traced and lowered once for equal arrays."""
        begin, key = f"{path}.", (block, *settings.items())

        def function(weights: Weights, *inputs: Any) -> Any:
            return block(Net(replace(self, weights=weights)), *inputs, **settings)

        function.__name__ = block.__name__
        own = {
            name.removeprefix(begin): leaf
            for name, leaf in self.weights.items()
            if name.startswith(begin)
        }
        return self.called.setdefault(key, jax.jit(function))(own, *inputs)

    def repeat(self, path: str, count: int, block: Block, x: Any) -> Any:
        """Apply several layers, in a loop where it has one."""
        run = self.network.run

        def layer(carried: Any, weights: Weights, number: str) -> Any:
            own = replace(self, weights={**self.weights, **weights})
            return block(Net(own, f"{path}.{number}"), carried)

        remat = run.remat or "none" if isinstance(run, Learning) else "none"
        if _is_looped(self.network) and count > 1:
            step = rematerialised(partial(layer, number="*"), remat, is_loop=True)
            own = {
                name: leaf for name, leaf in self.weights.items() if name.startswith(f"{path}.*.")
            }
            with jax.named_scope("layers"):
                return lax.scan(lambda x, weights: (step(x, weights), None), x, own)[0]
        for index in range(count):
            step = rematerialised(partial(layer, number=str(index)), remat, is_loop=False)
            begin = f"{path}.{index}."
            own = {name: leaf for name, leaf in self.weights.items() if name.startswith(begin)}
            with jax.named_scope(f"layers_{index:02d}"):
                x = step(x, own)
        return x


def _is_looped(network: Network) -> bool:
    return bool(getattr(network.run, "scan", False))


@frozen
class Program:
    """A network on a mesh, as `hespas.models.steps.training` takes it."""

    model: Network
    divided: Divided

    @property
    def platform(self) -> str:
        """The platform to lower the step for."""
        return platform_of(self.model.run.attention or "") or "cpu"

    def weights(self, dtype: Any) -> dict[str, Any]:
        """Return the abstract weights; a loop's are one array."""
        weights: dict[str, Any] = {}
        for path, weight in self.model.weights.items():
            if "*" not in path:
                weights[path] = self._array(weight, dtype)
            elif _is_looped(self.model) and weight.copies > 1:
                weights[path] = self._array(weight, dtype, weight.copies)
            else:
                weights |= {
                    path.replace("*", str(index)): self._array(weight, dtype)
                    for index in range(weight.copies)
                }
        return weights

    def _array(self, weight: Weight, dtype: Any, *copies: int) -> jax.ShapeDtypeStruct:
        # What axes do not divide evenly, a vocabulary or a row, is whole on each device.
        axes, mesh = self.divided.axes, self.divided.mesh
        labels = (
            None if size % mesh.size(*axes.get(label, ())) else label for label, size in weight.dims
        )
        spec = PartitionSpec(*(None for _ in copies), *self.divided.spec(*labels))
        shape = (*copies, *(size for _, size in weight.dims))
        sharding = NamedSharding(self.divided.mesh.abstract(), spec)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def array(self, shape: Sequence[int], dtype: Any, *, rounds: int = 1) -> jax.ShapeDtypeStruct:
        """Return an abstract array of all samples."""
        names = ("batch",) if rounds == 1 else ("rounds", "batch")
        spec = self.divided.spec(*names, *(None for _ in shape))
        sizes = (*(self.divided.sizes[name] for name in names), *shape)
        sharding = NamedSharding(self.divided.mesh.abstract(), spec)
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)

    def batch(self, *, rounds: int = 1) -> dict[str, Any]:
        """Return the abstract batch: inputs, and targets."""
        model, dtype = self.model, dtype_named(self.model.dtype)
        arrays = {
            entry.name: self.array(
                entry.shape, jnp.int32 if entry.is_number else dtype, rounds=rounds
            )
            for entry in model.inputs
        }
        if not isinstance(model.run, Learning):
            return arrays
        target = target_shape(model.design.objective, {entry.name: entry for entry in model.inputs})
        if target is None:
            return arrays
        shape, is_number = target
        return arrays | {
            "targets": self.array(shape, jnp.int32 if is_number else dtype, rounds=rounds)
        }

    def made(self, weights: Weights, given: Weights, caches: Caches | None = None) -> jax.Array:
        """Return what the forward pass makes."""
        ops = Arrays(network=self.model, divided=self.divided, weights=weights, caches=caches)
        return made_of(self.model.design, self.model.run, Net(ops), given)

    def looked_up(self, weights: Weights, batch: Weights) -> jax.Array:
        """Return the sum of a sample's rows in each table."""
        ops = Arrays(network=self.model, divided=self.divided, weights=weights)
        return self.model.design.looked_up(Net(ops), batch)

    def loss(self, weights: Weights, batch: Weights) -> jax.Array:
        """Return the mean loss."""
        output = self.made(weights, batch)
        with jax.named_scope("loss"):
            return OBJECTIVES[self.model.design.objective](
                output.astype(jnp.float32), batch.get("targets")
            )


def build(settings: Network) -> Step:
    """Return the step of a network."""
    settings.check()

    def program(axes: Mapping[str, tuple[str, ...]]) -> Program:
        divided = Divided(mesh=settings.mesh, sizes=settings.sizes, axes=axes)
        return Program(model=settings, divided=divided)

    own, run = program(settings.axes), settings.run
    if isinstance(run, Learning):
        if isinstance(settings.design, Dlrm):
            return sparse_training(own)
        return training(own, program(settings.state_axes))
    weights, batch, donated = own.weights(dtype_named(settings.dtype)), own.batch(), ()
    function, arguments = own.made, (weights, batch)
    if isinstance(run, Reading):
        function = partial(_reading, own)
    elif isinstance(run, Writing):
        batch["position"] = own.divided.array(dtype=jnp.int32)
        function, donated = partial(_writing, own), (1,)
        arguments = (weights, _cache_shapes(own), batch)
    return Step(
        # Weights that a step does not read are held all the same.
        function=jax.jit(function, donate_argnums=donated, keep_unused=True),
        arguments=arguments,
        mesh=settings.mesh,
        platform=own.platform,
    )


# The names of these parameters are those of arguments in programs.
def _reading(program: Program, weights: Weights, given: Weights) -> Any:
    caches = Caches(cached={}, written={})
    logits = program.made(weights, given, caches)
    return jnp.argmax(logits, -1).astype(jnp.int32), caches.written


def _writing(program: Program, weights: Weights, cached: Weights, given: Weights) -> Any:
    caches = Caches(cached=cached, written={}, position=given["position"])
    logits = program.made(weights, given, caches)
    return jnp.argmax(logits, -1).astype(jnp.int32), caches.written


def _cache_shapes(program: Program) -> dict[str, dict[str, Any]]:
    model, divided = program.model, program.divided
    sharding = NamedSharding(divided.mesh.abstract(), divided.spec("batch", "heads", None, None))
    array = partial(jax.ShapeDtypeStruct, dtype=dtype_named(model.dtype), sharding=sharding)
    return {
        path.replace("*", str(index)): dict.fromkeys(
            ("keys", "values"), array((divided.sizes["batch"], *shape))
        )
        for path, (shape, copies) in model.caches.items()
        for index in range(copies)
    }
