"""Encoders, some with decoders: BERT, ViT, SigLIP, T5 and Whisper.

Weights have the names and places of transformers 5.24, whose modelling files are the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hespas.base.frozen import frozen
from hespas.models.network import ROW, Design, Heads, Input, Net, Sample

_BERT = ("attention.self.query", "attention.self.key", "attention.self.value")


@frozen
class Tower:
    """A stack of equal layers, ``gated`` or plain.

    Gated layers multiply the activation by a second product.
    """

    embedding: int
    layers: int
    heads: int
    mlp: int
    activation: str
    epsilon: float
    head_size: int = 0
    gated: bool = False

    def attention(self, **how: Any) -> Heads:
        """Return its heads."""
        return Heads(count=self.heads, size=self.head_size or self.embedding // self.heads, **how)


@frozen
class Bert(Design):
    """Layers with norms behind; each token is guessed.

    Tokens are of ``kinds`` kinds. The first ``unused`` of the positions are those of no token.
    """

    objective: ClassVar[str] = "tokens"
    tower: Tower
    vocabulary: int
    positions: int
    kinds: int
    unused: int = 0

    @property
    def longest(self) -> int:
        """The tokens of the longest sequence."""
        return self.positions - self.unused

    @property
    def defaults(self) -> Mapping[str, int]:
        """Settings of a training step."""
        return {"batch": 8, "sequence": min(self.longest, 512)}

    def inputs(self, run: Any) -> tuple[Input, ...]:
        """Return what a sample is."""
        return Input("inputs", (run.sequence,)), Input("kinds", (run.sequence,))

    def forward(self, net: Net, sample: Sample) -> Any:
        """Return the logits of each token."""
        tower, ops, size = self.tower, net.ops, self.tower.embedding
        heads = tower.attention(names=(*_BERT, "attention.output.dense"))

        def block(layer: Net, x: Any) -> Any:
            x = x + layer.attention(x, heads)
            x = layer.norm("attention.output.LayerNorm", x, tower.epsilon)
            names = ("intermediate.dense", "output.dense")
            x = x + layer.feed_forward(x, tower.mlp, tower.activation, names)
            return layer.norm("output.LayerNorm", x, tower.epsilon)

        with ops.scope("embedding"):
            part = net["bert.embeddings"]
            words = part.table("word_embeddings", self.vocabulary, size, "vocabulary")
            x = ops.look_up(words, sample["inputs"])
            x = x + ops.look_up(
                part.table("token_type_embeddings", self.kinds, size), sample["kinds"]
            )
            positions = part.table("position_embeddings", self.positions, size)
            used = positions[self.unused : self.unused + x.shape[1]]
            x = part.norm("LayerNorm", x + used, tower.epsilon)
        x = net.repeat("bert.encoder.layer", tower.layers, block, ops.rows(x))
        with ops.scope("head"):
            head = net["cls.predictions"]
            x = ops.activate(head.linear("transform.dense", x, (ROW, size)), tower.activation)
            x = head.norm("transform.LayerNorm", x, tower.epsilon)
            bias = head.weight("bias", ("vocabulary", self.vocabulary))
            return ops.contract(x, words, 1, is_tied=True) + bias


def _pre_norm_layers(net: Net, tower: Tower, x: Any, names: tuple[str, str, Heads]) -> Any:
    first, second, heads = names

    def block(layer: Net, x: Any) -> Any:
        x = x + layer.attention(layer.norm(first, x, tower.epsilon), heads)
        hidden = layer.norm(second, x, tower.epsilon)
        return x + layer["mlp"].feed_forward(hidden, tower.mlp, tower.activation)

    return net.repeat("layers", tower.layers, block, net.ops.rows(x))


def _head_names(part: str, output: str) -> tuple[str, ...]:
    return (f"{part}.q_proj", f"{part}.k_proj", f"{part}.v_proj", f"{part}.{output}")


@frozen
class Vit(Design):
    """Layers over patches, with a class token or pooled."""

    objective: ClassVar[str] = "classes"
    defaults: ClassVar[Mapping[str, int]] = {"batch": 64}
    tower: Tower
    image: int
    patch: int
    channels: int
    labels: int
    has_biases: bool = True

    def inputs(self, _: Any) -> tuple[Input, ...]:
        """Return what a sample is."""
        return (Input("image", (self.image, self.image, self.channels), is_number=False),)

    def forward(self, net: Net, sample: Sample) -> Any:
        """Return the logits of classes, or the pooled row."""
        tower, ops, size = self.tower, net.ops, self.tower.embedding
        biases = (*(self.has_biases,) * 3, True)
        heads = tower.attention(names=_head_names("attention", "o_proj"), biases=biases)
        outer = net["vit"] if self.labels else net
        with ops.scope("embedding"):
            part, image = outer["embeddings"], sample["image"]
            patches = part["patch_embeddings"].patches("projection", image, size, self.patch)
            first = part.weight("cls_token", ("", 1), ("", 1), ("", size))
            x = ops.join([ops.repeated(first, image.shape[0]), patches], 1)
            x = x + part.weight("position_embeddings", ("", 1), ("", x.shape[1]), ("", size))
        x = _pre_norm_layers(outer, tower, x, ("layernorm_before", "layernorm_after", heads))
        with ops.scope("head"):
            x = outer.norm("layernorm", x, tower.epsilon)[:, 0]
            if self.labels:
                return net.linear("classifier", x, ("vocabulary", self.labels))
            return ops.activate(net.linear("pooler.dense", x, (ROW, size)), "tanh")


@frozen
class Siglip(Design):
    """A tower over patches and one over tokens, matched."""

    objective: ClassVar[str] = "pairs"
    defaults: ClassVar[Mapping[str, int]] = {"batch": 64}
    text: Tower
    vision: Tower
    vocabulary: int
    positions: int
    image: int
    patch: int
    channels: int

    def inputs(self, _: Any) -> tuple[Input, ...]:
        """Return what a sample is."""
        image = (self.image, self.image, self.channels)
        return Input("image", image, is_number=False), Input("inputs", (self.positions,))

    def forward(self, net: Net, sample: Sample) -> Any:
        """Return the logits of each pair of text and image."""
        ops = net.ops
        with ops.scope("vision"):
            image = self._encoded_image(net["vision_model"], sample["image"])
        with ops.scope("text"):
            text = self._encoded_text(net["text_model"], sample["inputs"])
        with ops.scope("head"):
            text, image = (ops.normalise(rows, "unit") for rows in (text, image))
            logits = ops.contract(text, image, 1, is_tied=True)
            scale = ops.activate(net.weight("logit_scale", ("", 1)), "exp")
            return logits * scale + net.weight("logit_bias", ("", 1))

    def _encoded_image(self, net: Net, image: Any) -> Any:
        ops, tower, size = net.ops, self.vision, self.vision.embedding
        heads = tower.attention(names=_head_names("self_attn", "out_proj"))
        x = net["embeddings"].patches("patch_embedding", image, size, self.patch)
        x = x + net["embeddings"].table("position_embedding", x.shape[1], size)
        x = _pre_norm_layers(net["encoder"], tower, x, ("layer_norm1", "layer_norm2", heads))
        x = net.norm("post_layernorm", x, tower.epsilon)
        part, dims = net["head"], heads.dims
        # One query for each image, which is trained, attends to all patches.
        weight = part.weight("attention.in_proj_weight", (ROW, size), ("", 3), *dims, kind="linear")
        bias = part.weight("attention.in_proj_bias", ("", 3), *dims)
        probe = ops.repeated(part.weight("probe", ("", 1), ("", 1), ("", size)), x.shape[0])
        query, key, value = (
            ops.contract(rows, weight[:, index], 1) + bias[index]
            for index, rows in enumerate((probe, x, x))
        )
        attended = ops.cross(part.path, query, lambda: (key, value), scale=heads.factor)
        dimensions = ("heads", "")
        x = part.linear("attention.out_proj", attended, (ROW, size), summed=dimensions)
        hidden = part.norm("layernorm", x, tower.epsilon)
        return (x + part["mlp"].feed_forward(hidden, tower.mlp, tower.activation))[:, 0]

    def _encoded_text(self, net: Net, tokens: Any) -> Any:
        ops, tower, size = net.ops, self.text, self.text.embedding
        heads = tower.attention(names=_head_names("self_attn", "out_proj"))
        part = net["embeddings"]
        table = part.table("token_embedding", self.vocabulary, size, "vocabulary")
        x = ops.look_up(table, tokens)
        x = x + part.table("position_embedding", self.positions, size)
        x = _pre_norm_layers(net["encoder"], tower, x, ("layer_norm1", "layer_norm2", heads))
        x = net.norm("final_layer_norm", x, tower.epsilon)
        return net.linear("head", x[:, -1], (ROW, size))


@frozen
class T5(Design):
    """Encoder and decoder with score biases by distance."""

    objective: ClassVar[str] = "tokens"
    defaults: ClassVar[Mapping[str, int]] = {"batch": 8, "sequence": 512, "source": 512}
    encoder: Tower
    decoder: Tower
    vocabulary: int
    buckets: int
    distance: int
    tied: bool

    def inputs(self, run: Any) -> tuple[Input, ...]:
        """Describe a sample: tokens read and tokens written."""
        return Input("source", (run.source,)), Input("inputs", (run.sequence,))

    def rows_of(self, run: Any) -> int:
        """Return the rows of a source."""
        return run.source

    def encoded(self, net: Net, sample: Sample) -> Any:
        """Return what the encoder makes."""
        return self._stack(net, "encoder", self.encoder, sample["source"], None)

    def decoded(self, net: Net, sample: Sample, source: Any) -> Any:
        """Return the logits of tokens, given the encoded source."""
        x = self._stack(net, "decoder", self.decoder, sample["inputs"], source)
        with net.ops.scope("logits"):
            x = net.ops.last(x)
            if not self.tied:
                return net.linear("lm_head", x, ("vocabulary", self.vocabulary), bias=False)
            x = x * x.shape[-1] ** -0.5
            return net.ops.contract(x, self._table(net), 1, is_tied=True)

    def _table(self, net: Net) -> Any:
        return net.table("shared", self.vocabulary, self.encoder.embedding, "vocabulary")

    def _stack(self, net: Net, name: str, tower: Tower, tokens: Any, source: Any) -> Any:
        ops, is_decoder = net.ops, name == "decoder"
        how: dict[str, Any] = {"biases": (False,) * 4, "scale": 1.0}
        own, cross = (
            tower.attention(names=tuple(f"layer.{part}.{letter}" for letter in "qkvo"), **how)
            for part in ("0.SelfAttention", "1.EncDecAttention")
        )
        inner = ("wi_0", "wi_1", "wo") if tower.gated else ("wi", "wo")
        number = 2 if is_decoder else 1
        names = tuple(f"layer.{number}.DenseReluDense.{letter}" for letter in inner)
        table = net[name].table(
            "block.0.layer.0.SelfAttention.relative_attention_bias", self.buckets, tower.heads
        )
        keys = ops.context(tokens.shape[1]) if is_decoder else tokens.shape[1]
        sizes = (self.buckets, self.distance)
        with ops.scope("positions"):
            buckets = ops.buckets(tokens.shape[1], keys, sizes, is_causal=is_decoder)
            bias = ops.look_up(table, buckets).transpose(2, 0, 1)

        def block(layer: Net, x: Any) -> Any:
            def normed(number: int) -> Any:
                return layer.norm(f"layer.{number}.layer_norm", x, tower.epsilon, "rms")

            x = x + layer.attention(normed(0), own, is_causal=is_decoder, bias=bias)
            if is_decoder:
                x = x + layer.attention(normed(1), cross, source=source)
            return x + layer.feed_forward(
                normed(number), tower.mlp, tower.activation, names, bias=False
            )

        with ops.scope(name):
            x = ops.rows(ops.look_up(self._table(net), tokens))
            x = net[name].repeat("block", tower.layers, block, x)
            return net[name].norm("final_layer_norm", x, tower.epsilon, "rms")


@frozen
class Whisper(Design):
    """An encoder of sound, and a text decoder."""

    objective: ClassVar[str] = "tokens"
    encoder: Tower
    decoder: Tower
    vocabulary: int
    bins: int
    rows: int
    positions: int
    is_scaled: bool

    @property
    def longest(self) -> int:
        """The tokens of the longest text."""
        return self.positions

    @property
    def defaults(self) -> Mapping[str, int]:
        """Settings of a training step."""
        return {"batch": 8, "sequence": self.positions}

    def inputs(self, run: Any) -> tuple[Input, ...]:
        """Describe a sample: frames of sound, and tokens."""
        sound = Input("source", (2 * self.rows, self.bins), is_number=False)
        return sound, Input("inputs", (run.sequence,))

    def rows_of(self, _: Any) -> int:
        """Return the rows of a source."""
        return self.rows

    def encoded(self, net: Net, sample: Sample) -> Any:
        """Return what the encoder makes."""
        part, tower, ops = net["model.encoder"], self.encoder, net.ops
        with ops.scope("encoder"):
            size, how = tower.embedding, {"padding": 1}
            x = part.convolution("conv1", sample["source"], size, 3, **how)
            x = ops.activate(x, tower.activation)
            x = part.convolution("conv2", x, size, 3, stride=2, **how)
            x = ops.activate(x, tower.activation)
            x = x + part.table("embed_positions", self.rows, size)
            return self._layers(part, tower, x, None)

    def decoded(self, net: Net, sample: Sample, source: Any) -> Any:
        """Return the logits of tokens, given the encoded sound."""
        part, tower, ops, tokens = net["model.decoder"], self.decoder, net.ops, sample["inputs"]
        with ops.scope("decoder"):
            table = part.table("embed_tokens", self.vocabulary, tower.embedding, "vocabulary")
            x = ops.look_up(table, tokens)
            if self.is_scaled:
                x = x * tower.embedding**0.5
            positions = part.table("embed_positions", self.positions, tower.embedding)
            begin = ops.context(tokens.shape[1]) - tokens.shape[1]
            x = x + positions[begin : begin + tokens.shape[1]]
            x = self._layers(part, tower, x, source, is_decoder=True)
        with ops.scope("logits"):
            return ops.contract(ops.last(x), table, 1, is_tied=True)

    def _layers(
        self, net: Net, tower: Tower, x: Any, source: Any, *, is_decoder: bool = False
    ) -> Any:
        def heads(part: str) -> Heads:
            return tower.attention(
                names=_head_names(part, "out_proj"), biases=(True, False, True, True)
            )

        def block(layer: Net, x: Any) -> Any:
            hidden = layer.norm("self_attn_layer_norm", x, tower.epsilon)
            x = x + layer.attention(hidden, heads("self_attn"), is_causal=is_decoder)
            if is_decoder:
                hidden = layer.norm("encoder_attn_layer_norm", x, tower.epsilon)
                x = x + layer.attention(hidden, heads("encoder_attn"), source=source)
            hidden = layer.norm("final_layer_norm", x, tower.epsilon)
            return x + layer.feed_forward(hidden, tower.mlp, tower.activation)

        x = net.repeat("layers", tower.layers, block, net.ops.rows(x))
        return net.norm("layer_norm", x, tower.epsilon)
