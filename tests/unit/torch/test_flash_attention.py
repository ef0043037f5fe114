"""Functions of ``flash_attn`` and ``flash_attn_interface``, which need a GPU elsewhere."""

from __future__ import annotations

import pytest

from hespas.errors import UnsupportedError
from hespas.program.recorded import Operation
from torch_steps import needs_torch, operations, record

pytestmark = needs_torch

_SCRIPT = """
import importlib.metadata, importlib.util
import torch
import flash_attn
import flash_attn_interface
from flash_attn import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func
from flash_attn.bert_padding import pad_input, unpad_input

assert importlib.metadata.version("flash_attn") == flash_attn.__version__ == "2.8.3"
assert importlib.metadata.packages_distributions()["flash_attn"] == ["flash-attn"]
assert importlib.util.find_spec("flash_attn_interface") is not None

def train():
    qkv = torch.ones(2, 64, 3, 8, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    rows = torch.tensor([0, 64, 96, 128], dtype=torch.int32).cuda()
    mask = torch.tensor([[1] * 64, [1] * 48 + [0] * 16]).cuda()
    def step():
        q, k, v = qkv.unbind(2)
        {}
    return step
"""


def _recorded(line: str) -> list[Operation]:
    return operations(record(_SCRIPT.format(line), eager=True), "hespas::flash_attention")


def test_an_array_of_queries_keys_and_values_has_one_gradient() -> None:
    step = record(
        _SCRIPT.format("flash_attn_qkvpacked_func(qkv, causal=True).sum().backward()"), eager=True
    )
    forward, backward = operations(step, "hespas::flash_attention")
    assert [tensor.shape for tensor in forward.inputs] == [(2, 64, 8, 32)] * 3
    assert [tensor.shape for tensor in forward.outputs] == [(2, 64, 8, 32), (2, 8, 64)]
    assert [tensor.shape for tensor in backward.outputs] == [(2, 64, 8, 32)] * 3
    assert len({tensor.storage for tensor in backward.outputs}) == 1
    assert not operations(step, "aten::stack")
    (note,) = step.notes
    assert "flash_attn is called, and not its kernels" in note


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("flash_attn_func(q, k[:, :, :2], v[:, :, :2], 0.0, None, True, (15, 0))", (True, 15, 1.0)),
        # 64 queries see 16 keys to each side, and fewer at both ends.
        ("flash_attn_func(q, k, v, window_size=(16, 16))", (False, -1, (64 * 33 - 272) / 64**2)),
        ("flash_attn_func(q[:, :1], k, v, causal=True)", (False, -1, 1.0)),
        (
            (
                "f = (x.flatten(0, 1) for x in (q, k, v));"
                "flash_attn_varlen_func(*f, rows, rows, 64, 64, causal=True)"
            ),
            (True, -1, (64 * 65 + 2 * 32 * 33) / (2 * 64 * 65)),
        ),
    ],
)
def test_pairs_follow_from_masks_and_lengths(line: str, arguments: tuple[bool, int, float]) -> None:
    (forward,) = _recorded(line)
    assert forward.arguments["is_causal"] == arguments[0]
    assert forward.arguments["window_size_left"] == arguments[1]
    assert forward.arguments["attended"] == pytest.approx(arguments[2])
    assert forward.arguments["kernel"] == "flash_attention_2"


def test_rows_without_padding_are_found_and_put_back() -> None:
    lines = """
        kept, places, rows, longest, _ = unpad_input(q, mask)
        assert (kept.shape, longest) == ((112, 8, 32), 64) and rows.tolist() == [0, 64, 112]
        y = flash_attn_varlen_func(kept, kept, kept, rows, rows, longest, longest)
        assert pad_input(y, places, 2, 64).shape == q.shape
"""
    (forward,) = _recorded(lines.strip())
    assert forward.arguments["attended"] == pytest.approx((64**2 + 48**2) / 112**2)


def test_the_third_version_is_as_fast_as_what_was_measured() -> None:
    (forward,) = _recorded("flash_attn_interface.flash_attn_func(q, k, v, None, True)")
    assert forward.arguments["kernel"] == "flash_attention_3"
    assert forward.arguments["is_causal"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("flash_attn.flash_attn_with_kvcache(q, k, v)", "flash_attn_with_kvcache is not recorded"),
        (
            (
                "n = torch.rand(4, device='cuda').int();"
                "flash_attn_varlen_func(q[0], k[0], v[0], n, n, 64, 64)"
            ),
            r"train.py:\d+: the lengths of sequences that flash_attn gets depend on tensors",
        ),
    ],
)
def test_what_is_not_known_is_refused(line: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        _recorded(line)
