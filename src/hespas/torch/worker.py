"""Record a PyTorch step in a process: ``python -m hespas.torch.worker``.

It answers a question (`hespas.base.question`, `hespas.torch.messages`). What it changes in torch
stays changed, and user code runs in it: nothing else does.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from hespas.base.question import serve
from hespas.errors import ExtraMissingError
from hespas.torch.messages import STEP_FILE, StepAnswer, StepRequest


def _answered(request: StepRequest, home: Path) -> StepAnswer:
    os.environ.update(_environment(request))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(home / "triton"))
    sys.path[:] = [*request.path, *(entry for entry in sys.path if entry not in request.path)]
    os.chdir(request.directory)
    try:
        recording: Any = import_module("hespas.torch.recording")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("hespas"):
            raise
        raise ExtraMissingError("a step of PyTorch", extra="torch") from error
    step, inputs = recording.record_step(request)
    (home / STEP_FILE).write_bytes(step)
    return StepAnswer(files=inputs.files(_scripts(request)), variables=inputs.variables())


def _scripts(request: StepRequest) -> list[str]:
    """Return the file of a script, which is no module."""
    return [] if request.function else [str(Path(request.module).resolve())]


def _environment(request: StepRequest) -> dict[str, str]:
    """Return what ``torchrun`` sets for a rank."""
    return {
        "RANK": str(request.rank),
        "WORLD_SIZE": str(request.world_size),
        "LOCAL_RANK": str(request.local_rank),
        "LOCAL_WORLD_SIZE": str(request.local_world_size),
        "GROUP_RANK": str(request.rank // request.devices_per_host),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "0",
    }


if __name__ == "__main__":
    serve(StepRequest, _answered)
