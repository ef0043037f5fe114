"""Engines: their published defaults, and what they leave for keys and values."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from hespas.errors import ConfigError
from hespas.serve import engine as engines
from hespas.serve.engine import ENGINES, Engine, Reserve, engine_named, vllm

H100 = 80 * 2**30


def test_vllm_takes_large_batches_on_large_parts_but_a100() -> None:
    assert vllm(memory_bytes=H100, part="H100_80GB").token_budget == 8192
    assert vllm(memory_bytes=H100, part="A100_SXM_80GB").token_budget == 2048
    assert vllm(memory_bytes=24 * 2**30, part="RTX4090").most_sequences == 256


def test_batches_are_padded_up_to_a_captured_graph() -> None:
    engine = vllm(memory_bytes=H100, part="H100_80GB")
    assert [engine.padded(size) for size in (1, 3, 8, 9, 250, 257, 512, 513)] == [
        *(1, 4, 8, 16, 256, 272, 512, 513)
    ]


@pytest.mark.parametrize(("name", "share"), [("vllm", 52), ("sglang", 53), ("trtllm", 54)])
def test_memory_rules(name: str, share: int) -> None:
    """Of 100 bytes with 30 of weights and 10 of workspace."""
    engine = engine_named(name, memory_bytes=H100, part="H100_80GB")
    assert engine.cache_bytes(capacity=100, weights=30, workspace=10) == share
    assert engine.cache_bytes(capacity=100, weights=99, workspace=10) == 0


def test_sglang_keeps_memory_for_prompts_and_graphs() -> None:
    """Of SGLang 0.5.9: 512 MiB, 1.5 a token of an iteration, 2 a graph, 128 a device."""
    h100 = engine_named("sglang", memory_bytes=H100, part="H100_80GB", devices=8)
    assert (h100.token_budget, h100.graph_sizes[-1]) == (8192, 512)
    assert h100.memory_share == 1 - (512 + 1.5 * 8192 + 2 * 512 + 128 * 8) / 81920
    b200 = engine_named("sglang", memory_bytes=180 * 2**30, part="B200_180GB", devices=4)
    assert (b200.token_budget, b200.graph_sizes[-1]) == (16384, 512)
    small = engine_named("sglang", memory_bytes=24 * 2**30, part="RTX4090_24GB")
    assert (small.token_budget, small.graph_sizes[-1]) == (2048, 24)


def test_only_tensorrt_llm_reserves_the_output() -> None:
    reserves = {
        name: engine_named(name, memory_bytes=H100, part="H100_80GB").reserve for name in ENGINES
    }
    assert [name for name, reserve in reserves.items() if reserve is Reserve.OUTPUT] == ["trtllm"]


def test_an_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'vllm'"):
        engine_named("vlm", memory_bytes=H100, part="H100_80GB")


def own(*, memory_bytes: int, part: str) -> Engine:
    """Return an engine of another package."""
    return vllm(memory_bytes=memory_bytes, part=part)


def test_another_package_adds_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="own", value=f"{__name__}:own", group="hespas.engines")

    def points(*, group: str, name: str | None = None) -> EntryPoints:
        assert group == "hespas.engines"
        return EntryPoints([point] if name in {None, "own"} else [])

    monkeypatch.setattr(engines, "entry_points", points)
    assert engine_named("own", memory_bytes=H100, part="H100").name == "vllm"
