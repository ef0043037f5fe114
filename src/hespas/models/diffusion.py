"""Networks that remove noise from images: DiT and FLUX.1.

Weights have the names and places of diffusers 0.42, whose modelling files are the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hespas.base.frozen import frozen
from hespas.models.network import ROW, Design, Heads, Input, Net, Sample

_WAVES = 256
_EPSILON = 1e-6
_STEPS = 1000.0


def _chunks(net: Net, name: str, condition: Any, count: int) -> list[Any]:
    """Return what modulates a layer, (batch, 1, features) each."""
    features = net.linear(name, condition, (ROW, count * condition.shape[-1]))
    size = condition.shape[-1]
    return [features[:, None, index * size : (index + 1) * size] for index in range(count)]


def _modulated(net: Net, x: Any, shift: Any, scale: Any, epsilon: float = _EPSILON) -> Any:
    return net.ops.normalise(x, "layer", epsilon) * (scale + 1) + shift


def embedded(net: Net, x: Any, size: int) -> Any:
    """Return two products with an activation between."""
    x = net.ops.activate(net.linear("linear_1", x, (ROW, size)), "silu")
    return net.linear("linear_2", x, (ROW, size))


def _feed_forward(net: Net, name: str, x: Any, width: int) -> Any:
    return net.feed_forward(x, width, "gelu", (f"{name}.net.0.proj", f"{name}.net.2"))


@frozen
class Dit(Design):
    """Layers over patches of latents, modulated by step and class."""

    objective: ClassVar[str] = "noise"
    defaults: ClassVar[Mapping[str, int]] = {"batch": 32}
    heads: int
    head_size: int
    layers: int
    side: int
    patch: int
    channels: int
    made: int
    classes: int
    epsilon: float
    has_biases: bool

    def inputs(self, _: Any) -> tuple[Input, ...]:
        """Return what a sample is."""
        image = Input("image", (self.side, self.side, self.channels), is_number=False)
        return image, Input("step", ()), Input("label", ())

    def forward(self, net: Net, sample: Sample) -> Any:
        """Return the noise, with its variance for twice the channels."""
        ops, size, patches = net.ops, self.heads * self.head_size, self.side // self.patch
        names = tuple(f"attn1.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0"))
        biases = (*(self.has_biases,) * 3, True)
        heads = Heads(count=self.heads, size=self.head_size, names=names, biases=biases)

        def condition(layer: Net) -> Any:
            part = layer["norm1.emb"]
            waves = ops.waves(sample["step"], _WAVES, shift=1)
            table = part.table("class_embedder.embedding_table", self.classes + 1, size)
            features = embedded(part["timestep_embedder"], waves, size)
            return ops.activate(features + ops.look_up(table, sample["label"]), "silu")

        def block(layer: Net, x: Any) -> Any:
            with ops.scope("modulation"):
                chunks = _chunks(layer, "norm1.linear", condition(layer), 6)
            shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = chunks
            x = x + gate * layer.attention(_modulated(layer, x, shift, scale), heads)
            hidden = _modulated(layer, x, shift_mlp, scale_mlp, self.epsilon)
            return x + gate_mlp * _feed_forward(layer, "ff", hidden, 4 * size)

        with ops.scope("embedding"):
            x = net["pos_embed"].patches("proj", sample["image"], size, self.patch)
            x = x + self._positions(net, patches, size)
        x = net.repeat("transformer_blocks", self.layers, block, ops.rows(x))
        with ops.scope("head"):
            first = condition(ops.first("transformer_blocks"))
            features = net.linear("proj_out_1", first, (ROW, 2 * size))[:, None]
            x = _modulated(net, x, features[:, :, :size], features[:, :, size:])
            x = net.linear("proj_out_2", x, (ROW, self.patch**2 * self.made))
            x = x.reshape(x.shape[0], patches, patches, self.patch, self.patch, self.made)
            x = x.transpose(0, 1, 3, 2, 4, 5)
            return x.reshape(x.shape[0], self.side, self.side, self.made)

    @staticmethod
    def _positions(net: Net, patches: int, size: int) -> Any:
        """Return waves of the column, then of the row."""
        ops = net.ops
        waves = ops.waves(ops.places(0, patches), size // 2, sines_first=True)
        column = ops.repeated(waves[None], patches)
        both = ops.join([column, column.transpose(1, 0, 2)], 2)
        return both.reshape(1, patches * patches, size)


@frozen
class Flux(Design):
    """Layers over text and image, first apart, then together.

    An image of ``run.image`` pixels has a row for 16 each way: 8 to a latent, 2 to a row.
    """

    objective: ClassVar[str] = "noise"
    divides: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, int]] = {"batch": 1, "sequence": 512, "image": 1024}
    pixels: ClassVar[int] = 16
    heads: int
    head_size: int
    layers: int
    single_layers: int
    channels: int
    text: int
    pooled: int
    is_guided: bool
    rotations: tuple[int, ...]

    def inputs(self, run: Any) -> tuple[Input, ...]:
        """Return what a sample is."""
        rows = (run.image // self.pixels) ** 2
        shapes = {
            "image": (rows, self.channels),
            "text": (run.sequence, self.text),
            "pooled": (self.pooled,),
            "step": (),
        } | ({"guidance": ()} if self.is_guided else {})
        return tuple(Input(name, shape, is_number=False) for name, shape in shapes.items())

    def forward(self, net: Net, sample: Sample) -> Any:
        """Return where each row of the image goes."""
        ops, size = net.ops, self.heads * self.head_size
        with ops.scope("embedding"):
            image = net.linear("x_embedder", sample["image"], (ROW, size))
            text = net.linear("context_embedder", sample["text"], (ROW, size))
            condition = ops.activate(self._condition(net["time_text_embed"], sample, size), "silu")
            turns = self._rotations(net, text.shape[1], image.shape[1])
        both = net.repeat(
            "transformer_blocks",
            self.layers,
            lambda layer, pair: self._two_streams(layer, pair, condition, turns),
            (text, image),
        )
        x = net.repeat(
            "single_transformer_blocks",
            self.single_layers,
            lambda layer, x: self._one_stream(layer, x, condition, turns),
            ops.join(both, 1),
        )
        with ops.scope("head"):
            scale, shift = _chunks(net, "norm_out.linear", condition, 2)
            x = _modulated(net, x[:, text.shape[1] :], shift, scale)
            return net.linear("proj_out", x, (ROW, self.channels))

    def _condition(self, net: Net, sample: Sample, size: int) -> Any:
        embedding = embedded(net["text_embedder"], sample["pooled"], size)
        for name, part in (("step", "timestep_embedder"), ("guidance", "guidance_embedder")):
            if name in sample:
                waves = net.ops.waves(sample[name] * _STEPS, _WAVES)
                embedding = embedding + embedded(net[part], waves, size)
        return embedding

    def _rotations(self, net: Net, text: int, rows: int) -> Any:
        """Return each row's cosines and sines."""
        ops, side = net.ops, round(rows**0.5)
        column = ops.repeated(ops.places(0, side)[None], side)
        nothing = (column * 0).reshape(rows)
        places = [
            nothing,
            column.transpose(1, 0).reshape(rows),
            column.reshape(rows),
        ]
        before = ops.places(0, text) * 0
        waves = [
            ops.waves(ops.join([before, place], 0), count, is_paired=True)
            for place, count in zip(places, self.rotations, strict=True)
        ]
        return tuple(ops.join(list(part), 1)[:, None] for part in zip(*waves, strict=True))

    def _projected(self, net: Net, x: Any, names: tuple[str, ...]) -> list[Any]:
        """Return queries, keys and values; the first two are normalised."""
        *products, query_norm, key_norm = names
        dims = (("heads", self.heads), ("", self.head_size))
        query, key, value = (net.linear(name, x, *dims) for name in products)
        query, key = (
            net.norm(name, heads, _EPSILON, "rms")
            for name, heads in ((query_norm, query), (key_norm, key))
        )
        return [query, key, value]

    def _attention(self, net: Net, arrays: list[Any], turns: Any) -> Any:
        query, key, value = arrays
        query, key = (_rotated(net, heads, turns) for heads in (query, key))
        scale = self.head_size**-0.5
        return net.ops.attend(net.path, query, lambda: (key, value), scale=scale)

    def _two_streams(self, net: Net, pair: Any, condition: Any, turns: Any) -> Any:
        ops, (text, image) = net.ops, pair
        size, length = image.shape[-1], text.shape[1]
        parts = (("norm1_context", text), ("norm1", image))
        with ops.scope("modulation"):
            chunks = [_chunks(net, f"{name}.linear", condition, 6) for name, _ in parts]
        names = (
            ("add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q", "norm_added_k"),
            ("to_q", "to_k", "to_v", "norm_q", "norm_k"),
        )
        with ops.scope("attention"):
            of_parts = [
                self._projected(net["attn"], _modulated(net, x, *of_x[:2]), own)
                for x, of_x, own in zip(pair, chunks, names, strict=True)
            ]
            joined = [ops.join(arrays, 1) for arrays in zip(*of_parts, strict=True)]
            attended = self._attention(net["attn"], joined, turns)
            dimensions, row = ("heads", ""), (ROW, size)
            outputs = (
                net["attn"].linear("to_add_out", attended[:, :length], row, summed=dimensions),
                net["attn"].linear("to_out.0", attended[:, length:], row, summed=dimensions),
            )
        streams: list[Any] = []
        for x, output, of_x, name in zip(pair, outputs, chunks, ("ff_context", "ff"), strict=True):
            _, _, gate, shift, scale, gate_mlp = of_x
            rows = x + gate * ops.keep(output, "output_projection")
            fed = _feed_forward(net, name, _modulated(net, rows, shift, scale), 4 * size)
            streams.append(rows + gate_mlp * fed)
        return tuple(streams)

    def _one_stream(self, net: Net, x: Any, condition: Any, turns: Any) -> Any:
        ops, size = net.ops, x.shape[-1]
        with ops.scope("modulation"):
            shift, scale, gate = _chunks(net, "norm.linear", condition, 3)
        hidden = _modulated(net, x, shift, scale)
        with ops.scope("attention"):
            names = ("to_q", "to_k", "to_v", "norm_q", "norm_k")
            arrays = self._projected(net["attn"], hidden, names)
            attended = self._attention(net["attn"], arrays, turns)
        with ops.scope("mlp"):
            inner = ops.keep(net.linear("proj_mlp", hidden, ("mlp", 4 * size)), "mlp_up")
            flat = attended.reshape(*x.shape)
            joined = ops.join([flat, ops.activate(inner, "gelu")], 2)
            attended = ops.keep(net.linear("proj_out", joined, (ROW, size)), "mlp_down")
        return x + gate * attended


def _rotated(net: Net, x: Any, turns: Any) -> Any:
    """Return heads whose neighbouring numbers are turned."""
    cosine, sine = turns
    batch, tokens, heads, size = x.shape
    pairs = x.reshape(batch, tokens, heads, size // 2, 2)
    crossed = net.ops.join([-pairs[:, :, :, :, 1:], pairs[:, :, :, :, :1]], 4)
    return x * cosine + crossed.reshape(*x.shape) * sine
