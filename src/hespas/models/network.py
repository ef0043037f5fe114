"""The language of other networks: operations, counted or computed.

A network is a function over a `Net`. With `Shapes` below it leaves its weights and FLOPs; with
`hespas.models.steps.arrays` it is the program. Weights have the names that Hugging Face's libraries
give them, with ``*`` for the number of a layer that is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple, cast

from hespas.base.frozen import frozen

Dim = tuple[str, int]
"""The name of a dimension, by which the axes of a mesh divide it, and its size."""
Block = Callable[["Net", Any], Any]
Sample = Mapping[str, Any]
"""The inputs of a network by name, with a first dimension of samples."""
Keys = Callable[[], tuple[Any, Any]]
TABLE = "columns"
"""The dimension of tables that all data-parallel devices divide."""
ROW = "embedding"
"""The dimension of a weight that data-parallel devices divide."""


@frozen
class Weight:
    """A weight; ``kind`` says how Hugging Face's libraries store it.

    A repeated layer has as many ``copies``.
    """

    dims: tuple[Dim, ...]
    copies: int = 1
    kind: Literal["plain", "linear", "kernel"] = "plain"

    @property
    def elements(self) -> int:
        """How many numbers all copies have."""
        return self.copies * prod(size for _, size in self.dims)


@frozen
class Design:
    """The sizes of a network, which are no settings.

    Its ``objective`` names the loss. Where it ``divides``, the axis ``tp`` divides its products.
    ``longest`` are the most tokens of a sample, where it has that.
    """

    IS_FIXED: ClassVar[bool] = True
    divides: ClassVar[bool] = True


SOURCE = "/source"
"""Behind the path of a layer: its keys of another sequence."""
Ops = Any
"""`Shapes`, or the same methods of `hespas.models.steps.arrays.Arrays`.

Arrays have the batch first and the features last. Weights come in the type that is computed in.
"""


class Input(NamedTuple):
    """An input of each sample: numbers of tokens, or values."""

    name: str
    shape: tuple[int, ...]
    is_number: bool = True

    def __str__(self) -> str:
        return f"{self.name} {' x '.join(map(str, self.shape))}" if self.shape else self.name


@frozen
class Heads:
    """Attention's heads, and its four products' names and biases.

    Scores are multiplied by ``scale``, or where that is 0 by the inverse root of the size.
    """

    count: int
    size: int
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "out_proj")
    biases: tuple[bool, ...] = (True, True, True, True)
    scale: float = 0.0

    @property
    def factor(self) -> float:
        """What scores are multiplied by."""
        return self.scale or self.size**-0.5

    @property
    def dims(self) -> tuple[Dim, Dim]:
        """The dimensions of queries."""
        return ("heads", self.count), ("", self.size)


@dataclass(frozen=True, slots=True)
class Net:
    """A part of a network: operations, and the weights' path."""

    ops: Ops
    path: str = ""

    def __getitem__(self, name: str) -> Net:
        return replace(self, path=self._named(name))

    def _named(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def weight(self, name: str, *dims: Dim, kind: Any = "plain") -> Any:
        """Return a weight of this part."""
        return self.ops.weight(self._named(name), Weight(dims=dims, kind=kind))

    def linear(
        self, name: str, x: Any, *outputs: Dim, summed: tuple[str, ...] = (ROW,), bias: bool = True
    ) -> Any:
        """Return a product with the last dimensions of ``x``.

        ``summed`` are their names.
        """
        dims = (*zip(summed, x.shape[-len(summed) :], strict=True), *outputs)
        weight = self.weight(f"{name}.weight", *dims, kind="linear")
        y = self.ops.contract(x, weight, len(summed))
        if not bias:
            return y
        dims = tuple(("" if label == ROW else label, size) for label, size in outputs)
        return y + self.weight(f"{name}.bias", *dims)

    def norm(self, name: str, x: Any, epsilon: float, kind: str = "layer", groups: int = 1) -> Any:
        """Return normalised rows times weights."""
        size = ("", x.shape[-1])
        y = self.ops.normalise(x, kind, epsilon, groups) * self.weight(f"{name}.weight", size)
        return y if kind == "rms" else y + self.weight(f"{name}.bias", size)

    def convolution(self, name: str, x: Any, channels: int, size: int, **how: int) -> Any:
        """Return a convolution with windows of ``size``."""
        window = (("", size),) * (len(x.shape) - 2)
        kernel = self.weight(
            f"{name}.weight", *window, ("", x.shape[-1]), (ROW, channels), kind="kernel"
        )
        y = self.ops.convolve(x, kernel, how.get("stride", 1), how.get("padding", 0))
        return y + self.weight(f"{name}.bias", ("", channels))

    def patches(self, name: str, x: Any, channels: int, size: int) -> Any:
        """Return a row for each patch of an image."""
        y = self.convolution(name, x, channels, size, stride=size)
        return y.reshape(y.shape[0], y.shape[1] * y.shape[2], channels)

    def attention(
        self, x: Any, heads: Heads, *, is_causal: bool = False, bias: Any = None, source: Any = None
    ) -> Any:
        """Return attention among rows, or to another sequence."""
        query, key, value, output = heads.names
        of_query, *of_keys, of_output = heads.biases
        is_cross = source is not None
        rows = source if is_cross else x

        def keys() -> tuple[Any, Any]:
            return tuple(
                self.linear(name, rows, *heads.dims, bias=biased)
                for name, biased in zip((key, value), of_keys, strict=True)
            )

        with self.ops.scope("cross_attention" if is_cross else "attention"):
            queries = self.linear(query, x, *heads.dims, bias=of_query)
            if is_cross:
                rows_of_heads = self.ops.cross(self.path, queries, keys, scale=heads.factor)
            else:
                rows_of_heads = self.ops.attend(
                    self.path, queries, keys, scale=heads.factor, is_causal=is_causal, bias=bias
                )
            row = (ROW, x.shape[-1])
            rows_of_heads = self.linear(
                output, rows_of_heads, row, summed=("heads", ""), bias=of_output
            )
            return self.ops.keep(self.ops.rows(rows_of_heads), "output_projection")

    def feed_forward(
        self,
        x: Any,
        width: int,
        activation: str,
        names: tuple[str, ...] = ("fc1", "fc2"),
        *,
        bias: bool = True,
    ) -> Any:
        """Return two products with an activation between."""
        first, *more, last = names
        with self.ops.scope("mlp"):
            up = [self.linear(name, x, ("mlp", width), bias=bias) for name in (first, *more)]
            gate, *factors = (self.ops.keep(product, "mlp_up") for product in up)
            inner = self.ops.activate(gate, activation)
            for factor in factors:
                inner = inner * factor
            rows = self.linear(last, inner, (ROW, x.shape[-1]), summed=("mlp",), bias=bias)
            return self.ops.keep(self.ops.rows(rows), "mlp_down")

    def table(self, name: str, count: int, size: int, label: str = "") -> Any:
        """Return the rows of a table."""
        return self.weight(f"{name}.weight", (label, count), (ROW, size))

    def repeat(self, name: str, count: int, block: Block, x: Any) -> Any:
        """Return what several layers make, one after the other."""
        return self.ops.repeat(self._named(name), count, block, x)

    def call(self, block: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
        """Return what a block makes of this part and the inputs.

        A program has one function for all parts whose weights, inputs and settings are alike.
        """
        return self.ops.call(self.path, block, inputs, settings)


@dataclass(frozen=True, slots=True)
class Shape:
    """An array of which the shape alone is known."""

    shape: tuple[int, ...]

    def __add__(self, operand: Any) -> Shape:
        own, operand_shape = self.shape, getattr(operand, "shape", ())
        length = max(len(own), len(operand_shape))
        padded = [(1,) * (length - len(shape)) + tuple(shape) for shape in (own, operand_shape)]
        for size, second_size in zip(*padded, strict=True):
            assert 1 in {size, second_size} or size == second_size, (own, operand_shape)  # noqa: S101 - what a network says
        return Shape(tuple(map(max, *padded)))

    __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __add__

    def __neg__(self) -> Shape:
        return self

    def reshape(self, *shape: int) -> Shape:
        """Return another shape of as many numbers."""
        assert prod(shape) == prod(self.shape), (self.shape, shape)  # noqa: S101 - as above
        return Shape(shape)

    def transpose(self, *order: int) -> Shape:
        """Return dimensions in another order."""
        return Shape(tuple(self.shape[axis] for axis in order))

    def __getitem__(self, index: Any) -> Shape:
        indices = cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
        sizes, shape = list(self.shape), list[int]()
        for item in indices:
            if item is None:
                shape.append(1)
            elif isinstance(item, slice):
                shape.append(len(range(*item.indices(sizes.pop(0)))))
            else:
                sizes.pop(0)
        return Shape((*shape, *sizes))


@dataclass(slots=True)
class Counted:
    """A network's weights by name, and FLOPs of a sample.

    ``caches`` are the heads, tokens and size of the keys that a layer reads, as often as it is
    repeated.
    """

    weights: dict[str, Weight] = field(default_factory=dict)
    caches: dict[str, tuple[tuple[int, int, int], int]] = field(default_factory=dict)
    flops: float = 0.0


@frozen
class Shapes:
    """Operations on shapes: they leave weights and FLOPs in ``counted``.

    With a cache attention is among ``cached`` tokens, and to ``source`` ones whose keys are there;
    of a prompt the last token alone has logits.
    """

    counted: Counted = field(default_factory=Counted)
    copies: int = 1
    cached: int = 0
    source: int = 0
    is_prompt: bool = False

    def context(self, new: int) -> int:
        """Return how many tokens attention is among."""
        return self.cached or new

    def last(self, x: Shape) -> Shape:
        """Return the rows that have logits."""
        return x[:, -1:] if self.is_prompt else x

    @contextmanager
    def scope(self, _: str) -> Generator[None]:
        """Do nothing."""
        yield

    def weight(self, path: str, weight: Weight) -> Shape:
        """Note a weight."""
        self.counted.weights.setdefault(path, replace(weight, copies=self.copies))
        return Shape(tuple(size for _, size in weight.dims))

    def _counts(self, flops: float) -> None:
        self.counted.flops += self.copies * flops

    def contract(self, x: Shape, weight: Shape, count: int, *, is_tied: bool = False) -> Shape:
        """Count a product: two for each pair that is multiplied."""
        outputs = weight.shape[:-count] if is_tied else weight.shape[count:]
        contracted = weight.shape[-count:] if is_tied else weight.shape[:count]
        assert x.shape[-count:] == contracted, (x.shape, weight.shape)  # noqa: S101 - as above
        self._counts(2 * prod(x.shape) * prod(outputs))
        return Shape((*x.shape[:-count], *outputs))

    def convolve(self, x: Shape, kernel: Shape, stride: int, padding: int) -> Shape:
        """Count a convolution, padding with it."""
        batch, *sides, _ = x.shape
        size, outputs = kernel.shape[0], kernel.shape[-1]
        pixels = [(side + 2 * padding - size) // stride + 1 for side in sides]
        self._counts(2 * batch * prod(pixels) * prod(kernel.shape))
        return Shape((batch, *pixels, outputs))

    def attend(self, path: str, query: Shape, keys: Keys, **_: Any) -> Shape:
        """Count both products of attention, among all tokens."""
        key, value = keys()
        if self.cached:
            self._caches(path, query, self.cached)
        return self._attended(query, value, self.context(key.shape[1]))

    def _caches(self, path: str, query: Shape, tokens: int) -> None:
        *_, heads, size = query.shape
        self.counted.caches[path] = (heads, tokens, size), self.copies

    def cross(self, path: str, query: Shape, keys: Keys, **_: Any) -> Shape:
        """Count attention to another sequence."""
        if self.source:
            self._caches(f"{path}{SOURCE}", query, self.source)
            return self._attended(query, query, self.source)
        key, value = keys()
        return self._attended(query, value, key.shape[1])

    def _attended(self, query: Shape, value: Shape, tokens: int) -> Shape:
        length = value.shape[-1]
        self._counts(2 * prod(query.shape[:-1]) * tokens * (query.shape[-1] + length))
        return Shape((*query.shape[:-1], length))

    def normalise(self, x: Shape, *_: Any) -> Shape:
        """Return the same shape."""
        return x

    activate = keep = rows = normalise

    def look_up(self, table: Shape, numbers: Shape) -> Shape:
        """Return a row for each number."""
        return Shape((*numbers.shape, *table.shape[1:]))

    def bags(self, tables: Sequence[Shape], rows: Shape, _: Sequence[int]) -> Shape:
        """Return a sum of rows for each table."""
        return Shape((rows.shape[0], len(tables), tables[0].shape[-1]))

    def join(self, arrays: Sequence[Shape], axis: int) -> Shape:
        """Return the sum along an axis."""
        shape = list(arrays[0].shape)
        shape[axis] = sum(array.shape[axis] for array in arrays)
        return Shape(tuple(shape))

    def repeated(self, x: Shape, batch: int) -> Shape:
        """Return as many."""
        return Shape((batch, *x.shape[1:]))

    def enlarge(self, x: Shape) -> Shape:
        """Return twice as many pixels each way."""
        batch, height, width, channels = x.shape
        return Shape((batch, 2 * height, 2 * width, channels))

    def waves(self, values: Shape, size: int, *, is_paired: bool = False, **_: Any) -> Any:
        """Return one more dimension."""
        wave = Shape((*values.shape, size))
        return (wave, wave) if is_paired else wave

    def places(self, _: int, count: int) -> Shape:
        """Return as many."""
        return Shape((count,))

    def buckets(self, queries: int, keys: int, *_: Any, **__: Any) -> Shape:
        """Return a bucket for each pair."""
        return Shape((queries, keys))

    def repeat(self, path: str, count: int, block: Block, x: Any) -> Any:
        """Count one of several layers as often."""
        layer = replace(self, copies=self.copies * count)
        return block(Net(layer, f"{path}.*"), x)

    def call(
        self, path: str, block: Callable[..., Any], inputs: Any, settings: Mapping[str, Any]
    ) -> Any:
        """Count what a block computes."""
        return block(Net(self, path), *inputs, **settings)

    def first(self, path: str) -> Net:
        """Return the first of several layers, to compute again."""
        return Net(self, f"{path}.*")
