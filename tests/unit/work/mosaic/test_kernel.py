"""What kernels of TPUs do, against counts made by hand."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from msgspec import structs

from hespas.errors import CostError
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Op
from hespas.work.expand import assumptions, expand, total
from hespas.work.library_config import author_cost
from hespas.work.mosaic.kernel import KernelLoad, kernel_load
from hespas.work.mosaic.tally import Unit
from mosaic_kernels import (
    copied_by_hand,
    decode_attention,
    divided_attention,
    doubled_until,
    flash_attention,
    gradient,
    grouped_matmul,
    kernels,
    loads,
    lowered,
    matmul,
    shape,
    splash_attention,
)


def product_flops(load: KernelLoad) -> int:
    return round(sum(2 * product.multiply_accumulates * count for product, count in load.products))


def test_a_matrix_product_by_blocks() -> None:
    m, n, k, blocks = 512, 384, 1024, (256, 128, 256)
    (load,) = loads(matmul(m, n, k, blocks=blocks), shape(m, k), shape(k, n))
    assert product_flops(load) == 2 * m * n * k
    assert load.work.flops[0] == ("bf16", 2 * m * n * k)
    # Each block of x is fetched for each column of blocks, each of y for each row of blocks.
    assert load.bytes_read == 2 * (m * k * (n // blocks[1]) + k * n * (m // blocks[0]))
    assert load.bytes_written == 2 * m * n
    assert load.steps == 2 * 3 * 4
    assert not load.notes


def test_a_block_that_stays_is_fetched_once() -> None:
    m, n, k = 512, 256, 128
    (load,) = loads(matmul(m, n, k, blocks=(128, 256, 128)), shape(m, k), shape(k, n))
    assert load.bytes_read == 2 * (m * k + k * n)


def test_a_block_over_the_edge_is_cut_off() -> None:
    m, n, k = 300, 256, 128
    (load,) = loads(matmul(m, n, k, blocks=(128, 256, 128)), shape(m, k), shape(k, n))
    assert load.bytes_read == 2 * (m * k + k * n)
    assert load.bytes_written == 2 * m * n
    # The unit multiplies whole blocks.
    assert product_flops(load) == 2 * 384 * n * k


def test_conditions_on_the_grid_decide_how_often_something_runs() -> None:
    m, n, k, blocks = 512, 256, 512, (128, 128, 128)
    (load,) = loads(matmul(m, n, k, blocks=blocks), shape(m, k), shape(k, n))
    converted = [
        count
        for use, count in load.vectors
        if use.unit is Unit.ARITHMETIC and use.elements == 128**2
    ]
    # The sum at each of 4 x 2 x 4 steps, the conversion at the last of each four.
    assert sum(converted) == 4 * 2 * (4 + 1)


LENGTH, HEADS, SIZE, BLOCK = 1024, 2, 128, 128
QKV = (shape(HEADS, LENGTH, SIZE),) * 3


def visited(length: int, block: int) -> int:
    """Return the blocks of scores that a causal mask leaves."""
    return sum(row + 1 for row in range(length // block))


@pytest.mark.parametrize("is_causal", [True, False])
def test_splash_attention_skips_the_blocks_that_its_mask_empties(*, is_causal: bool) -> None:
    (load,) = loads(splash_attention(LENGTH, HEADS, is_causal=is_causal), *QKV)
    blocks = visited(LENGTH, BLOCK) if is_causal else (LENGTH // BLOCK) ** 2
    assert product_flops(load) == HEADS * blocks * 4 * BLOCK * BLOCK * SIZE
    assert not load.notes


def test_a_causal_mask_halves_splash_attention_but_for_the_diagonal() -> None:
    (load,) = loads(splash_attention(LENGTH, HEADS, is_causal=True), *QKV)
    full = 4 * HEADS * LENGTH * LENGTH * SIZE
    rows = LENGTH // BLOCK
    assert product_flops(load) / full == pytest.approx((rows + 1) / (2 * rows))
    # One exponential for each score, and one to rescale each row of a block.
    blocks = HEADS * visited(LENGTH, BLOCK)
    assert load.work.transcendentals >= blocks * BLOCK * BLOCK
    assert load.work.transcendentals <= 2.2 * blocks * BLOCK * BLOCK


def blocks_of(load: KernelLoad) -> int:
    return product_flops(load) // (4 * BLOCK * BLOCK * SIZE)


IN_ORDER = tuple(range(LENGTH))
# The first eighth with the last, the second with the last but one, and so on.
BALANCED = tuple(
    [row for at in range(4) for part in (at, 7 - at) for row in range(part * 128, part * 128 + 128)]
)


@pytest.mark.parametrize(
    ("rows", "window", "most", "mean"),
    [
        # Eight rows of 1 to 8 blocks: the last two, 7 + 8, are the last device's, of 36 in all.
        (IN_ORDER, None, 15, 9),
        # Each device has a short row and a long one: 1 + 8, 2 + 7, 3 + 6, 4 + 5.
        (BALANCED, None, 9, 9),
        # Each row but the first sees two blocks.
        (IN_ORDER, 128, 4, 15 / 4),
    ],
)
def test_a_divided_sequence_is_as_slow_as_the_device_with_most_blocks(
    rows: tuple[int, ...], window: int | None, most: int, mean: float
) -> None:
    (op,) = kernels(divided_attention(LENGTH, 4, rows, window=window))
    load = kernel_load(op)
    assert blocks_of(load) == most
    differ = (
        "kernel splash_mha_fwd_no_residuals: devices have different blocks to compute; it takes as "
        f"long as on the device that has most, {most / mean:.3g} times the mean"
    )
    assert load.notes == (() if most == mean else (differ,))


def test_the_backward_pass_of_splash_attention_has_five_products_and_two_again() -> None:
    step = gradient(splash_attention(LENGTH, HEADS, is_causal=True))
    forward, *backward = sorted(loads(step, *QKV), key=product_flops)
    assert product_flops(forward) == HEADS * visited(LENGTH, BLOCK) * 4 * BLOCK * BLOCK * SIZE
    # Keys and values: scores, dv, dp, dk; queries: scores, dp, dq (FlashAttention-2, section 2.3).
    assert sum(map(product_flops, backward)) == product_flops(forward) * 7 / 2


def test_flash_attention_agrees_with_what_its_author_says_of_it() -> None:
    batched = (shape(1, HEADS, LENGTH, SIZE),) * 3
    (op,) = kernels(lowered(flash_attention(is_causal=False), *batched))
    load, said = kernel_load(op), author_cost(op)
    assert said is not None
    assert product_flops(load) == 4 * HEADS * LENGTH * LENGTH * SIZE
    assert load.work.total_flops == pytest.approx(said.flops, rel=0.05)
    assert load.bytes_read + load.bytes_written >= said.bytes_accessed
    (causal,) = loads(flash_attention(is_causal=True), *batched)
    blocks = HEADS * visited(LENGTH, BLOCK)
    assert product_flops(causal) == blocks * 4 * BLOCK * BLOCK * SIZE


def test_a_grouped_product_is_as_long_as_its_tables() -> None:
    rows, experts, inner, outer, tile = 1024, 4, 256, 384, 128
    sizes = shape(experts, dtype=jnp.int32)
    (load,) = loads(grouped_matmul(), shape(rows, inner), shape(experts, inner, outer), sizes)
    # Each group begins somewhere inside of a tile, which two groups then share.
    tiles = rows // tile + experts - 1
    assert product_flops(load) == 2 * tiles * tile * inner * outer
    assert any("depends on data" in note for note in load.notes)


DECODED = 4, 16, 4, 128, 16, 64


def decoding() -> Op:
    batch, heads, key_heads, size, page, count = DECODED
    arguments = (
        shape(batch, heads, size),
        shape(key_heads, count, page, size),
        shape(key_heads, count, page, size),
        shape(batch, dtype=jnp.int32),
        shape(batch, count // batch, dtype=jnp.int32),
    )
    (op,) = kernels(lowered(decode_attention(4), *arguments))
    return op


def test_decoding_reads_the_cache_once() -> None:
    batch, heads, key_heads, size, page, count = DECODED
    load = kernel_load(decoding())
    cache = 2 * 2 * key_heads * count * page * size
    assert load.bytes_read == pytest.approx(cache, rel=0.02)
    tokens = count // batch * page
    assert product_flops(load) == 4 * batch * heads * tokens * size
    assert any("loops whose length depends on data" in note for note in load.notes)


def test_the_work_of_a_program_holds_that_of_its_kernels() -> None:
    m, n, k = 256, 256, 256
    program = lowered(matmul(m, n, k, blocks=(128, 128, 128)), shape(m, k), shape(k, n))
    (op,) = kernels(program)
    costs = expand(op)
    assert total(costs) == kernel_load(op).work
    assert assumptions(costs) == ()


def test_copies_by_hand_count_once_each() -> None:
    chunks = 32
    array = shape(chunks * 8, 128, dtype=jnp.float32)
    (load,) = loads(copied_by_hand(chunks), array)
    assert (load.bytes_read, load.bytes_written) == (chunks * 4096, chunks * 4096)
    assert load.work.total_flops == chunks * 8 * 128


def test_a_loop_of_unknown_length_without_copies_is_refused() -> None:
    numbers, array = shape(1, dtype=jnp.int32), shape(8, 128, dtype=jnp.float32)
    (load,) = loads(doubled_until(known=True), numbers, array)
    assert load.work.total_flops == 5 * 8 * 128
    assert load.bytes_read == 4 + 4096
    with pytest.raises(CostError, match=r"a loop of kernel kernel at .* depends on data"):
        loads(doubled_until(known=False), numbers, array)


def test_an_author_s_word_goes_before_an_assumed_loop() -> None:
    op = decoding()
    assert isinstance(op.attrs, CustomCallAttrs)
    said = r"\22cost_estimate\22: {\22flops\22: 1000, \22bytes_accessed\22: 100}, \22body\22"
    config = op.attrs.backend_config.replace(r"\22body\22", said, 1)
    stated = structs.replace(op, attrs=structs.replace(op.attrs, backend_config=config))
    costs = expand(stated)
    assert total(costs).total_flops == 1000
    (assumed,) = assumptions(costs)
    assert "as its author states it" in assumed
