"""The layers of a ResNet and their sizes.

Version 1.5: a block's stride is on its 3x3 convolution.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from hespas.base.frozen import frozen
from hespas.errors import ConfigError
from hespas.models.model import MeshAxes

CLASSES, CHANNELS = 1000, 3
_FIRST_WIDTH, _EXPANSION = 64, 4


@frozen
class Convolution:
    """A square convolution without bias, before a batch normalisation."""

    name: str
    kernel: int
    inputs: int
    outputs: int
    stride: int = 1


@frozen
class Block:
    """Convolutions beside a shortcut, convolved if shapes differ.

    ``name`` is that of its scope: the stage, and the block in it.
    """

    name: str
    main: tuple[Convolution, ...]
    shortcut: Convolution | None


@frozen
class Network:
    """The first convolution, the blocks, and a dense layer."""

    first: Convolution
    blocks: tuple[Block, ...]
    classes: int

    def convolutions(self) -> tuple[Convolution, ...]:
        """Return all convolutions, in the order of the forward pass."""
        inside = [
            layer
            for block in self.blocks
            for layer in (*block.main, *([block.shortcut] if block.shortcut else []))
        ]
        return (self.first, *inside)

    @property
    def features(self) -> int:
        """How many channels the dense layer takes."""
        return self.blocks[-1].main[-1].outputs

    def windows(self, image: int) -> dict[str, Windows]:
        """Return each convolution's windows along an image's side, by name.

        The first pads by 3 pixels, and pooling by 2 follows it; the others and the pooling keep
        what their stride leaves, rounded up.

        >>> windows = network("3-4-6-3", bottleneck=True, classes=1000).windows(224)
        >>> [windows[name].made for name in ("first", "stage1_block01_0", "stage4_block03_2")]
        [112, 56, 7]
        """
        first = _windows(self.first, image, padding=2 * 3)
        windows = {self.first.name: first}
        side = -(-first.made // 2)
        for block in self.blocks:
            if block.shortcut is not None:
                windows[block.shortcut.name] = _windows(block.shortcut, side)
            for layer in block.main:
                windows[layer.name] = _windows(layer, side)
                side = windows[layer.name].made
        return windows

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight: kernels in HWIO."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in self.convolutions():
            shapes[f"{layer.name}_kernel"] = (
                layer.kernel,
                layer.kernel,
                layer.inputs,
                layer.outputs,
            )
            shapes[f"{layer.name}_scale"] = shapes[f"{layer.name}_bias"] = (layer.outputs,)
        return shapes | {
            "dense_kernel": (self.features, self.classes),
            "dense_bias": (self.classes,),
        }

    def statistics(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each running mean and variance."""
        shapes = {f"{layer.name}_mean": (layer.outputs,) for layer in self.convolutions()}
        return shapes | {
            f"{layer.name}_variance": (layer.outputs,) for layer in self.convolutions()
        }


@frozen
class Windows:
    """The pixels made and read along an image's side.

    Padding is not read: of a kernel of 3 at an edge, 2 pixels are.
    """

    made: int
    read: int


def _windows(layer: Convolution, side: int, *, padding: int | None = None) -> Windows:
    """Return a layer's windows; by its stride without ``padding``."""
    stride, kernel = layer.stride, layer.kernel
    if padding is None:
        padding = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    pixels = (side + padding - kernel) // stride + 1
    starts = [index * stride - padding // 2 for index in range(pixels)]
    read = sum(min(start + kernel, side) - max(start, 0) for start in starts)
    return Windows(made=pixels, read=read)


def network(stages: str, *, bottleneck: bool, classes: int) -> Network:
    """Build a network from its stages' block counts.

    >>> len(network("3-4-6-3", bottleneck=True, classes=1000).convolutions())
    53
    """
    counts = stages.split("-")
    if not all(count.isdecimal() and int(count) for count in counts):
        raise ConfigError(f"stages is {stages!r}", hint="give numbers of blocks, as in 3-4-6-3")
    blocks: list[Block] = []
    channels = _FIRST_WIDTH
    for stage, count in enumerate(map(int, counts)):
        for index in range(count):
            stride = 2 if stage and not index else 1
            name = f"stage{stage + 1}_block{index + 1:02d}"
            width = _FIRST_WIDTH * 2**stage
            block = _block(name, channels, width, stride, bottleneck=bottleneck)
            blocks.append(replace(block, name=f"stage{stage + 1}/block_{index + 1:02d}"))
            channels = blocks[-1].main[-1].outputs
    first = Convolution(name="first", kernel=7, inputs=CHANNELS, outputs=_FIRST_WIDTH, stride=2)
    return Network(first=first, blocks=tuple(blocks), classes=classes)


def _block(name: str, inputs: int, width: int, stride: int, *, bottleneck: bool) -> Block:
    outputs = width * (_EXPANSION if bottleneck else 1)
    shapes = (
        ((1, inputs, width, 1), (3, width, width, stride), (1, width, outputs, 1))
        if bottleneck
        else ((3, inputs, width, stride), (3, width, outputs, 1))
    )
    main = tuple(
        Convolution(
            name=f"{name}_{index}", kernel=kernel, inputs=inputs_of, outputs=outputs_of, stride=step
        )
        for index, (kernel, inputs_of, outputs_of, step) in enumerate(shapes)
    )
    same = inputs == outputs and stride == 1
    shortcut = Convolution(
        name=f"{name}_shortcut", kernel=1, inputs=inputs, outputs=outputs, stride=stride
    )
    return Block(name=name, main=main, shortcut=None if same else shortcut)


@frozen
class ResNet:
    """A ResNet and its run; ``batch`` counts images per device.

    ``stages`` is how many blocks each stage has, as in 3-4-6-3. All axes of the mesh divide the
    batch.
    """

    module: ClassVar[str] = "hespas.models.steps.resnet"

    stages: str
    bottleneck: bool
    train: bool = True
    mesh: MeshAxes = MeshAxes(axes=(("data", 4),))
    batch: int = 256
    image: int = 224
    dtype: str = "bf16"
    loss_scale: bool = True
    classes: int = CLASSES

    @property
    def layers(self) -> Network:
        """Its layers."""
        return network(self.stages, bottleneck=self.bottleneck, classes=self.classes)

    @property
    def parts(self) -> int:
        """How many data-parallel parts the mesh has: all its devices."""
        return self.mesh.device_count

    def check(self) -> None:
        """Do nothing: any mesh divides the images."""
