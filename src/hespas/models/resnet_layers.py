"""The layers of a ResNet, their sizes, and how it is run.

Version 1.5: a block's stride is on its 3x3 convolution.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import ClassVar

from hespas.base.frozen import frozen
from hespas.errors import refuse
from hespas.models.model import MeshAxes

CHANNELS = 3
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

    ``name`` is that of its scope: the stage, and the block in it. Names of its layers and their
    weights begin with ``prefix``.
    """

    name: str
    prefix: str
    main: tuple[Convolution, ...]
    shortcut: Convolution | None

    @property
    def unnamed(self) -> Block:
        """The block without the names that tell it from others of its sizes."""
        main = tuple(self._inside(layer) for layer in self.main)
        shortcut = None if self.shortcut is None else self._inside(self.shortcut)
        return Block(name="", prefix="", main=main, shortcut=shortcut)

    def _inside(self, layer: Convolution) -> Convolution:
        return replace(layer, name=layer.name.removeprefix(self.prefix))


FIRST = Convolution(name="first", kernel=7, inputs=CHANNELS, outputs=_FIRST_WIDTH, stride=2)


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
    classes: int = 1000

    @property
    def parts(self) -> int:
        """How many data-parallel parts the mesh has: all its devices."""
        return self.mesh.device_count

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks, between the first convolution and a dense layer."""
        return _blocks(self.stages, bottleneck=self.bottleneck)

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """All convolutions, in the order of the forward pass.

        >>> len(ResNet(stages="3-4-6-3", bottleneck=True).convolutions)
        53
        """
        shortcuts = (((block.shortcut,) if block.shortcut else ()) for block in self.blocks)
        inside = zip((block.main for block in self.blocks), shortcuts, strict=True)
        return (FIRST, *(layer for main, shortcut in inside for layer in (*main, *shortcut)))

    @property
    def features(self) -> int:
        """How many channels the dense layer takes."""
        return self.blocks[-1].main[-1].outputs

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight: kernels in HWIO."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in self.convolutions:
            sizes = (layer.kernel, layer.kernel, layer.inputs, layer.outputs)
            shapes[f"{layer.name}_kernel"] = sizes
            shapes[f"{layer.name}_scale"] = shapes[f"{layer.name}_bias"] = (layer.outputs,)
        dense = (self.features, self.classes)
        return shapes | {"dense_kernel": dense, "dense_bias": (self.classes,)}

    @property
    def statistics(self) -> dict[str, tuple[int, ...]]:
        """The shape of each running mean and variance."""
        return {
            f"{layer.name}_{moment}": (layer.outputs,)
            for moment in ("mean", "variance")
            for layer in self.convolutions
        }

    @property
    def pixels_read(self) -> dict[str, int]:
        """The pixels that each convolution reads along an image's side.

        Padding is not read: of a kernel of 3 at an edge, 2 pixels are. The first pads by 3 pixels,
        and pooling by 2 follows it; the others and the pooling keep what their stride leaves,
        rounded up.

        >>> ResNet(stages="3-4-6-3", bottleneck=True).pixels_read["stage4_block03_0"]
        7
        """
        read: dict[str, int] = {}
        read[FIRST.name], side = _windows(FIRST, self.image, padding=2 * 3)
        side = -(-side // 2)
        for block in self.blocks:
            if block.shortcut is not None:
                read[block.shortcut.name], _ = _windows(block.shortcut, side)
            for layer in block.main:
                read[layer.name], side = _windows(layer, side)
        return read

    def check(self) -> None:
        """Do nothing: any mesh divides the images."""


def _windows(layer: Convolution, side: int, *, padding: int | None = None) -> tuple[int, int]:
    """Return the pixels read and made; by its stride without ``padding``."""
    stride, kernel = layer.stride, layer.kernel
    if padding is None:
        padding = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    pixels = (side + padding - kernel) // stride + 1
    starts = [index * stride - padding // 2 for index in range(pixels)]
    return sum(min(start + kernel, side) - max(start, 0) for start in starts), pixels


@cache
def _blocks(stages: str, *, bottleneck: bool) -> tuple[Block, ...]:
    counts = stages.split("-")
    refuse(
        not all(count.isdecimal() and int(count) for count in counts),
        f"stages is {stages!r}",
        "give numbers of blocks, as in 3-4-6-3",
    )
    blocks: list[Block] = []
    inputs = _FIRST_WIDTH
    for stage, count in enumerate(map(int, counts)):
        width = _FIRST_WIDTH * 2**stage
        outputs = width * (_EXPANSION if bottleneck else 1)
        for index in range(count):
            stride = 2 if stage and not index else 1
            prefix = f"stage{stage + 1}_block{index + 1:02d}_"
            sizes = [(3, inputs, width, stride), (3, width, outputs, 1)]
            if bottleneck:
                last = (1, width, outputs, 1)
                sizes = [(1, inputs, width, 1), (3, width, width, stride), last]
            main = [_convolution(f"{prefix}{place}", *own) for place, own in enumerate(sizes)]
            is_same = inputs == outputs and stride == 1
            shortcut = _convolution(f"{prefix}shortcut", 1, inputs, outputs, stride)
            scope = f"stage{stage + 1}/block_{index + 1:02d}"
            beside = None if is_same else shortcut
            blocks.append(Block(name=scope, prefix=prefix, main=tuple(main), shortcut=beside))
            inputs = outputs
    return tuple(blocks)


def _convolution(name: str, kernel: int, inputs: int, outputs: int, stride: int) -> Convolution:
    return Convolution(name=name, kernel=kernel, inputs=inputs, outputs=outputs, stride=stride)
