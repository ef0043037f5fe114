"""A U-Net that removes noise, with attention to text.

Weights have the names and places of diffusers 0.42, whose ``UNet2DConditionModel`` is the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hespas.base.frozen import frozen
from hespas.models.diffusion import embedded
from hespas.models.network import ROW, Design, Heads, Input, Net, Sample

_EPSILON, _ATTENTION_EPSILON = 1e-5, 1e-6
_TIMES = 6
"""SDXL's inputs beside the text: sizes and cuts of the image."""


@frozen
class Level:
    """A resolution's channels, and its layers of attention, if any."""

    width: int
    heads: int
    layers: int


@frozen
class Unet(Design):
    """Levels down to the smallest resolution, and up again.

    With ``added`` numbers of a text and a wave of ``added_waves`` for each of six sizes, these are
    embedded beside the step.
    """

    objective: ClassVar[str] = "noise"
    divides: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, int]] = {"batch": 4, "sequence": 77}
    side: int
    channels: int
    made: int
    text: int
    levels: tuple[Level, ...]
    middle: Level
    blocks: int
    groups: int
    epsilon: float
    is_linear: bool
    added: int = 0
    added_waves: int = 0

    def inputs(self, run: Any) -> tuple[Input, ...]:
        """Return what a sample is."""
        shapes = {"image": (self.side, self.side, self.channels), "text": (run.sequence, self.text)}
        more = {"pooled": (self.added,), "times": (_TIMES,)} if self.added else {}
        return (
            *(Input(name, shape, is_number=False) for name, shape in (shapes | more).items()),
            Input("step", ()),
        )

    def forward(self, net: Net, sample: Sample) -> Any:
        """Return the noise."""
        ops, text, first = net.ops, sample["text"], self.levels[0].width
        condition = ops.activate(self._condition(net, sample, first), "silu")
        x = net.convolution("conv_in", sample["image"], first, 3, padding=1)
        passed = [x]
        for index, level in enumerate(self.levels):
            part = net[f"down_blocks.{index}"]
            with ops.scope(f"down_{index}"):
                for block in range(self.blocks):
                    x = self._block(part, block, x, level, condition, text)
                    passed.append(x)
                if index < len(self.levels) - 1:
                    name = "downsamplers.0.conv"
                    x = part.convolution(name, x, level.width, 3, stride=2, padding=1)
                    passed.append(x)
        with ops.scope("middle"):
            x = self._block(net["mid_block"], 0, x, self.middle, condition, text)
            last, width = net["mid_block.resnets.1"], self.middle.width
            x = last.call(self._residual_block, x, condition, width=width)
        for index, level in enumerate(reversed(self.levels)):
            part = net[f"up_blocks.{index}"]
            with ops.scope(f"up_{index}"):
                for block in range(self.blocks + 1):
                    x = ops.join([x, passed.pop()], 3)
                    x = self._block(part, block, x, level, condition, text)
                if index < len(self.levels) - 1:
                    larger = ops.enlarge(x)
                    x = part.convolution("upsamplers.0.conv", larger, level.width, 3, padding=1)
        with ops.scope("head"):
            x = ops.activate(self._group_norm(net, "conv_norm_out", x, self.epsilon), "silu")
            return net.convolution("conv_out", x, self.made, 3, padding=1)

    def _condition(self, net: Net, sample: Sample, first: int) -> Any:
        ops = net.ops
        with ops.scope("embedding"):
            embedding = embedded(net["time_embedding"], ops.waves(sample["step"], first), 4 * first)
            if not self.added:
                return embedding
            waves = ops.waves(sample["times"], self.added_waves)
            waves = waves.reshape(waves.shape[0], _TIMES * self.added_waves)
            both = ops.join([sample["pooled"], waves], 1)
            return embedding + embedded(net["add_embedding"], both, 4 * first)

    def _group_norm(self, net: Net, name: str, x: Any, epsilon: float) -> Any:
        return net.norm(name, x, epsilon, "group", self.groups)

    def _block(  # noqa: PLR0917 - the inputs of a block
        self, net: Net, index: int, x: Any, level: Level, condition: Any, text: Any
    ) -> Any:
        resnet, attention = net[f"resnets.{index}"], net[f"attentions.{index}"]
        x = resnet.call(self._residual_block, x, condition, width=level.width)
        return attention.call(self._attention, x, text, level=level) if level.layers else x

    def _residual_block(self, net: Net, x: Any, condition: Any, *, width: int) -> Any:
        ops, how = net.ops, {"padding": 1}
        inner = ops.activate(self._group_norm(net, "norm1", x, self.epsilon), "silu")
        inner = net.convolution("conv1", inner, width, 3, **how)
        inner = inner + net.linear("time_emb_proj", condition, (ROW, width))[:, None, None]
        inner = ops.activate(self._group_norm(net, "norm2", inner, self.epsilon), "silu")
        inner = net.convolution("conv2", inner, width, 3, **how)
        if x.shape[-1] != width:
            x = net.convolution("conv_shortcut", x, width, 1)
        return ops.rows(x + inner)

    def _attention(self, net: Net, x: Any, text: Any, *, level: Level) -> Any:
        size = level.width
        batch, height, width, _ = x.shape
        rows = batch, height * width, size
        hidden = self._group_norm(net, "norm", x, _ATTENTION_EPSILON)
        if self.is_linear:
            hidden = net.linear("proj_in", hidden.reshape(*rows), (ROW, size))
        else:
            hidden = net.convolution("proj_in", hidden, size, 1).reshape(*rows)
        own, cross = (
            Heads(
                count=level.heads,
                size=size // level.heads,
                names=tuple(f"{part}.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")),
                biases=(False, False, False, True),
            )
            for part in ("attn1", "attn2")
        )

        def block(layer: Net, x: Any) -> Any:
            x = x + layer.attention(layer.norm("norm1", x, _EPSILON), own)
            x = x + layer.attention(layer.norm("norm2", x, _EPSILON), cross, source=text)
            return x + _geglu(layer, layer.norm("norm3", x, _EPSILON))

        hidden = net.repeat("transformer_blocks", level.layers, block, hidden)
        if self.is_linear:
            output = net.linear("proj_out", hidden, (ROW, size)).reshape(*x.shape)
        else:
            output = net.convolution("proj_out", hidden.reshape(*x.shape), size, 1)
        return x + output


def _geglu(net: Net, x: Any) -> Any:
    ops, size = net.ops, x.shape[-1]
    with ops.scope("mlp"):
        both = ops.keep(net.linear("ff.net.0.proj", x, ("", 2), ("mlp", 4 * size)), "mlp_up")
        inner = both[:, :, 0] * ops.activate(both[:, :, 1], "exact_gelu")
        rows = net.linear("ff.net.2", inner, (ROW, size), summed=("mlp",))
        return ops.keep(ops.rows(rows), "mlp_down")
