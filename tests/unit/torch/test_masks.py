"""FlexAttention's block masks: which share of all pairs of tokens they leave."""

from __future__ import annotations

import pytest

from torch_steps import kernel_calls, needs_torch, operations, record

pytestmark = needs_torch

FLEX = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

attention = torch.compile(flex_attention)

def train(window: int = 0, compiled: bool = False, documents: bool = False,
          on_host: bool = False, written: bool = False, whole: bool = False):
    numbers = (torch.arange(1024, device="cpu" if on_host else "cuda") // 256).to("cuda")
    if written:
        numbers.random_(4)
    def causal(batch, head, query, key):
        return (query >= key) & (query - key < (window or 1024))
    def of_documents(batch, head, query, key):
        return numbers[query] == numbers[key]
    allowed = of_documents if documents else causal
    make = torch.compile(create_block_mask, fullgraph=whole) if compiled else create_block_mask
    mask = make(allowed, None, None, 1024, 1024, device="cuda")
    query = torch.randn(2, 4, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    def step():
        attention(query, query, query, block_mask=mask).sum().backward()
    return step
"""
BLOCKS = 1024 // 128


def attended(*, window: int = 0, compiled: bool = False, whole: bool = False) -> list[float | None]:
    step = record(FLEX, window=window, compiled=compiled, whole=whole)
    calls = kernel_calls(step)
    return [call.attended for call in calls if call.kernel.startswith("triton_tem")]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_causal_mask_leaves_blocks_up_to_the_diagonal(*, compiled: bool) -> None:
    share = (BLOCKS + 1) / (2 * BLOCKS)
    assert attended(compiled=compiled) == [share, share]


def test_a_window_leaves_two_blocks_in_a_row() -> None:
    share = (2 * BLOCKS - 1) / BLOCKS**2
    assert attended(window=128) == [share, share]


def test_a_mask_that_is_made_by_one_graph_is_counted() -> None:
    assert attended(compiled=True, whole=True) == attended()


@pytest.mark.parametrize("on_host", [False, True])
def test_documents_by_position_leave_their_blocks(*, on_host: bool) -> None:
    step = record(FLEX, documents=True, on_host=on_host)
    calls = [call for call in kernel_calls(step) if call.kernel.startswith("triton_tem")]
    # Four documents of two blocks.
    assert [call.attended for call in calls] == [4 * 2 * 2 / BLOCKS**2] * 2


def test_documents_that_the_device_has_changed_are_not_counted() -> None:
    step = record(FLEX, documents=True, written=True)
    calls = [call for call in kernel_calls(step) if call.kernel.startswith("triton_tem")]
    assert [call.attended for call in calls] == [None, None]


def test_attention_that_is_not_compiled_computes_all_pairs() -> None:
    script = FLEX.replace("torch.compile(flex_attention)", "flex_attention")
    products = operations(record(script), "aten::bmm.default")
    # Two forward, five backward, of 8 heads in all.
    scores = [call for call in products if call.outputs[0].shape == (8, 1024, 1024)]
    assert (len(products), len(scores)) == (7, 3)


def test_a_mask_may_read_a_row_of_a_table() -> None:
    script = FLEX.replace("numbers[query] == numbers[key]", "numbers.view(1, -1)[0, query] >= key")
    assert kernel_calls(record(script, documents=True))
