"""Write every program for the judge: ``python export_programs.py OUTPUT_DIRECTORY``.

``NAME.mlir`` is what JAX exports; ``NAME.fused.hlo.pb`` is what XLA makes of it for the CPU.
A process of its own, because JAX counts its virtual devices when it starts.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
from registry import PROGRAMS

for _family in ("contractions", "control", "networks", "operations"):
    import_module(_family)

# Compiling takes longer than tracing: these have fusions of every kind.
FUSED = (
    "attention",
    "dynamic_slices",
    "embedding_gradient",
    "gathers",
    "layernorm_gradient",
    "lstm_gradient",
    "mlp_train_step",
    "movement",
    "resnet_block_gradient",
    "scan_gradient",
    "scatters",
    "softmax_gradient",
)


def main(directory: Path) -> None:
    for name, judged in PROGRAMS.items():
        traced = jax.jit(judged.function).trace(*judged.arguments)
        lowered = traced.lower(lowering_platforms=(judged.platform,))
        (directory / f"{name}.mlir").write_text(lowered.as_text())
        if name in FUSED:
            executable: Any = lowered.compile().runtime_executable()
            proto: bytes = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
            (directory / f"{name}.fused.hlo.pb").write_bytes(proto)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
