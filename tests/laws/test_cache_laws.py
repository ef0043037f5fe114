"""A decode step over a smaller cache is never longer."""

from __future__ import annotations

import pytest

import hespas

PARTS = ("H100_80GB", "B200_180GB", "MI355X", "TPUv6e", "TPUv7x")
STEPS = {
    "heads": ("qwen3-8b", {"context": "4096"}),
    "pages": ("qwen3-8b", {"context": "4096", "page_size": "16"}),
    "several tokens": ("qwen3-8b", {"context": "4096", "new_tokens": "4"}),
    "windows and sinks": ("gpt-oss-20b", {"context": "4096"}),
    "latent vectors": ("deepseek-v3", {"context": "4096"}),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", STEPS)
def test_a_cache_in_8_bits_makes_no_step_longer(part: str, name: str) -> None:
    model, settings = STEPS[name]

    def step_s(cache_dtype: str) -> float:
        return hespas.predict(
            model,
            cluster=f"2x{part}",
            mesh="tp=2",
            decode=True,
            batch=64,
            settings={"layers": "1", "cache_dtype": cache_dtype, **settings},
        ).step_time_s

    assert step_s("f8") < step_s("bf16")
