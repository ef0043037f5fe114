"""Hold steps that leave little memory free against the compiler: how their collectives run.

    python validation/short_memory.py [--only 8b]

Printed is, for each step, its modelled memory, the modelled time with work beside collectives and
without, which of both the model takes, and the compiled time. It needs the environment of ``make
test-compilers``; a step takes half a minute.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from hespas.compile.options import CompileOptions
from hespas.prediction.composition import predict_folded
from hespas.prediction.options import CompileChoice, Fidelity, PredictOptions
from hespas.prediction.result import Prediction
from hespas.study.space import candidates_of
from hespas.study.study import study_of

_STATES = {"set": {"state_dtype": "bf16"}}
_8B = {"model": "llama3-8b", "mesh": "fsdp=8", "global_batch": 64, **_STATES}
_8B |= {"remat": "minimal_with_context"}
_70B = {"model": "llama3-70b", "cluster": "256xH100_80GB", "global_batch": 512, **_STATES}
_SAVED = {**_70B, "remat": "minimal_with_context"}
_MUCH = 1000
"""A factor of the scheduler's limit that no program exceeds, in per cent."""
STEPS: dict[str, dict[str, object]] = {
    "8b, 3,584 tokens, 8 H100": {**_8B, "cluster": "8xH100_80GB", "sequence": 3584},
    "8b, 3,840 tokens, 8 H100": {**_8B, "cluster": "8xH100_80GB", "sequence": 3840},
    "8b, 4,096 tokens, 8 H100": {**_8B, "cluster": "8xH100_80GB", "sequence": 4096},
    "8b, 4,096 tokens, 8 H200": {**_8B, "cluster": "8xH200_141GB", "sequence": 4096},
    "70b, data=16,fsdp=16, full": {**_70B, "remat": "full", "mesh": "data=16,fsdp=16"},
    "70b, fsdp=256": {**_SAVED, "mesh": "fsdp=256", "micro_batch": 1},
    "70b, data=2,fsdp=128": {**_SAVED, "mesh": "data=2,fsdp=128", "micro_batch": 1},
    "70b, data=4,fsdp=64": {**_SAVED, "mesh": "data=4,fsdp=64", "micro_batch": 1},
    "70b, fsdp=128,tp=2": {**_SAVED, "mesh": "fsdp=128,tp=2", "micro_batch": 2},
}


def predicted(options: PredictOptions, fidelity: Fidelity, *, is_short: bool | None) -> Prediction:
    """Predict a step; ``is_short`` decides what the model of memory decides unless it is None."""
    factors = {None: None, True: 1, False: _MUCH}
    chosen = CompileOptions(memory_limit_slop_factor=factors[is_short])
    return predict_folded(
        replace(options, compile=CompileChoice(fidelity=fidelity, options=chosen))
    )


def line_of(name: str, step: dict[str, object]) -> str:
    """Return a step's line of the table."""
    given = {"micro_batch": 4 if name.startswith("8b") else 2, **step}
    (candidate,) = candidates_of(study_of(given))
    options = candidate.options()
    beside, alone, chosen = (
        predicted(options, Fidelity.FUSED, is_short=flag) for flag in (False, True, None)
    )
    compiled = predicted(options, Fidelity.COMPILED, is_short=None)
    times = [f"{each.step_time_s:.3f} s" for each in (beside, alone, compiled)]
    takes = "alone" if chosen.step_time_s == alone.step_time_s else "beside"
    off = 100 * (chosen.step_time_s / compiled.step_time_s - 1)
    memory = f"{beside.memory.peak_bytes / 1e9:.1f} GB"
    return f"| {name} | {memory} | {times[0]} | {times[1]} | {takes} | {times[2]} | {off:+.1f} % |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Steps with little memory left, compiled.")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    print("| step | memory | beside | alone | chosen | compiled | error |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name, step in STEPS.items():
        if name.startswith(given.only):
            print(line_of(name, step), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
