"""Hold modelled fusion of convolutional networks against the compiler, on one H100.

    python validation/convolutional.py [--only unet]

Printed is, for each network, the step's time, its kernels, and how many of them turn data and for
how long: modelled / compiled. The rules were read in what XLA compiles of the U-Net, the ResNet and
the generator with features first in bf16; all others judge them. It needs the environment of
``make test-compilers``; a network takes half a minute.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
from jax import export, nn

from convolutional_layers import Layers
from hespas.prediction import composition
from hespas.prediction.figures.breakdown import breakdown
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.result import Prediction


def unet(net: Layers, image: Any) -> Any:
    """Return a U-Net of a diffusion model, with attention at its lowest resolution."""
    time = net.dense(nn.silu(net.dense(net.parameter(image.shape[0], 512), 512)), 512)
    widths = (128, 256, 512)
    made = net.convolution(image, widths[0])
    kept = [made]
    for level, width in enumerate(widths):
        for _ in range(2):
            made = net.residual(made, width, time)
            made = net.attention(made) if level == 2 else made
            kept.append(made)
        if level < 2:
            made = net.convolution(made, width, stride=2)
            kept.append(made)
    made = net.residual(net.attention(net.residual(made, 512, time)), 512, time)
    for level, width in reversed([*enumerate(widths)]):
        for _ in range(3):
            made = net.residual(jnp.concatenate([made, kept.pop()], net.feature), width, time)
            made = net.attention(made) if level == 2 else made
        made = net.convolution(net.doubled(made), width) if level else made
    return net.convolution(nn.silu(net.group_norm(made)), 4)


def resnet(net: Layers, image: Any) -> Any:
    """Return three stages of a ResNet with bottlenecks."""
    made = nn.relu(net.batch_norm(net.convolution(image, 64, 7, 2)))
    for level, width in enumerate((64, 128, 256)):
        for block in range(2):
            stride = 2 if level and not block else 1
            inner = nn.relu(net.batch_norm(net.convolution(made, width, 1)))
            inner = nn.relu(net.batch_norm(net.convolution(inner, width, 3, stride)))
            inner = net.batch_norm(net.convolution(inner, 4 * width, 1))
            if made.shape != inner.shape:
                made = net.batch_norm(net.convolution(made, 4 * width, 1, stride))
            made = nn.relu(made + inner)
    return net.dense(made.mean(net.spatial), 1000)


def convnext(net: Layers, image: Any) -> Any:
    """Return three stages of a ConvNeXt, with depthwise convolutions."""
    made = net.layer_norm(net.convolution(image, 96, 4, 4))
    for level, width in enumerate((96, 192, 384)):
        made = net.convolution(net.layer_norm(made), width, 2, 2) if level else made
        for _ in range(2):
            inner = net.layer_norm(net.convolution(made, width, 7, groups=width))
            inner = net.over_features(
                inner,
                lambda it, width=width: net.dense(nn.gelu(net.dense(it, 4 * width)), width),
            )
            made = made + inner
    return net.dense(made.mean(net.spatial), 1000)


def decoder(net: Layers, image: Any) -> Any:
    """Return the decoder of a variational autoencoder."""
    made = net.attention(net.residual(net.convolution(image, 512), 512), 1)
    for level, width in enumerate((512, 256, 128)):
        made = net.residual(net.residual(made, width), width)
        made = net.convolution(net.doubled(made), width) if level < 2 else made
    return net.convolution(nn.silu(net.group_norm(made)), 3)


def generator(net: Layers, image: Any) -> Any:
    """Return a generator of transposed convolutions."""
    for width in (512, 256, 128):
        image = nn.relu(net.batch_norm(net.upsampled(image, width)))
    return jnp.tanh(net.upsampled(image, 3))


def blocks(net: Layers, image: Any) -> Any:
    """Return residual blocks of any number of axes."""
    made = net.convolution(image, 64)
    for width in (64, 128, 256):
        made = net.residual(net.residual(made, width), width)
        made = net.convolution(made, width, stride=2)
    return net.convolution(nn.silu(net.group_norm(made)), 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network with its layout and type, alone or with its gradient."""

    build: Callable[[Layers, Any], Any]
    image: tuple[int, int, int]
    is_features_first: bool = True
    dtype: str = "bfloat16"
    axes: int = 2
    has_gradient: bool = True

    def source(self) -> bytes:
        """Return the network as StableHLO."""
        kind = jnp.dtype(self.dtype)
        layers = Layers(is_features_first=self.is_features_first, dtype=kind, axes=self.axes)
        image = layers.image(*self.image)
        jax.eval_shape(partial(self.build, layers), image)
        shapes = layers.shapes

        def forward(given: Any, image: Any) -> Any:
            net = Layers(
                is_features_first=self.is_features_first, dtype=kind, axes=self.axes, given=given
            )
            return self.build(net, image)

        def loss(given: Any, image: Any) -> Any:
            return jnp.mean(forward(given, image).astype(jnp.float32) ** 2)

        step = jax.jit(jax.value_and_grad(loss) if self.has_gradient else forward)
        made = export.export(step, platforms=["cuda"])(shapes, image)
        return made.mlir_module().encode()


NETWORKS = {
    "U-Net, features first": Network(build=unet, image=(4, 4, 64)),
    "U-Net, features last": Network(build=unet, image=(4, 4, 64), is_features_first=False),
    "U-Net forward, features first": Network(build=unet, image=(4, 4, 64), has_gradient=False),
    "ResNet, features first": Network(build=resnet, image=(32, 3, 224)),
    "ResNet, features last": Network(build=resnet, image=(32, 3, 224), is_features_first=False),
    "ResNet, features first, f32": Network(build=resnet, image=(32, 3, 224), dtype="float32"),
    "ConvNeXt, features first": Network(build=convnext, image=(32, 3, 224)),
    "ConvNeXt, features last": Network(build=convnext, image=(32, 3, 224), is_features_first=False),
    "decoder forward, features first": Network(build=decoder, image=(2, 4, 64), has_gradient=False),
    "decoder, features first, f32": Network(build=decoder, image=(2, 4, 64), dtype="float32"),
    "generator, features first": Network(build=generator, image=(64, 128, 8)),
    "1-D blocks, features first": Network(build=blocks, image=(16, 8, 8192), axes=1),
    "1-D blocks, features last, f32": Network(
        build=blocks, image=(16, 8, 8192), axes=1, is_features_first=False, dtype="float32"
    ),
    "3-D blocks, features first": Network(build=blocks, image=(2, 4, 32), axes=3),
}


def _predicted(file: Path, fidelity: Fidelity) -> Prediction:
    return composition.predict(
        PredictOptions(
            program=ProgramOptions(file=file, devices=1),
            compile=CompileChoice(fidelity=fidelity),
            estimate=EstimateOptions(node="H100_80GB"),
            network=NetworkOptions(system="1xH100_80GB"),
        )
    )


def _turning(prediction: Prediction) -> tuple[int, float]:
    """Return how many kernels turn data, and how long they take."""
    kinds = breakdown(prediction).by_kind
    found = [amount for kind, amount in kinds.items() if kind.startswith("transpos")]
    return round(sum(each.count for each in found)), sum(each.time_s for each in found)


def line_of(name: str, network: Network) -> str:
    """Return a network's line of the table."""
    with TemporaryDirectory() as directory:
        file = Path(directory) / "network.mlir"
        file.write_bytes(network.source())
        both = [_predicted(file, fidelity) for fidelity in (Fidelity.FUSED, Fidelity.COMPILED)]
    times = [each.step_time_s for each in both]
    kernels = [round(sum(each.count for each in breakdown(it).by_kind.values())) for it in both]
    turning = [_turning(each) for each in both]
    cells = (
        name,
        " / ".join(f"{1e3 * each:.2f}" for each in times) + " ms",
        f"{100 * (times[0] / times[1] - 1):+.1f} %",
        " / ".join(str(each) for each in kernels),
        " / ".join(str(count) for count, _ in turning),
        " / ".join(f"{1e6 * each:.0f}" for _, each in turning) + " us",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="networks whose name holds this")
    given = parser.parse_args()
    print("| network | step | error | kernels | turning | |")
    print(f"|{'---|' * 6}")
    for name, network in NETWORKS.items():
        if given.only in name:
            print(line_of(name, network), flush=True)


if __name__ == "__main__":
    main()
