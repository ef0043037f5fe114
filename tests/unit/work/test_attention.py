from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import CostError
from hespas.program.program import Op
from hespas.program.work import Work
from hespas.work.attention import Attention, attentions
from hespas.work.expand import Leaf, expand, total
from hlo_programs import entry_ops


def _work(op: Op) -> Work:
    return total(expand(op))


def _flash(*, is_backward: bool) -> Op:
    target = "backward" if is_backward else "forward"
    config = '{"flash_attention_config":{"is_causal":true,"window":0}}'
    results, names = "bf16[2,64,8,128], f32[2,8,64]", "q, k, v"
    if is_backward:
        results = "bf16[2,64,8,128], bf16[2,64,4,128], bf16[2,64,4,128], u8[4096]"
        names = "q, k, v, c, l, d"
    op, *_ = entry_ops(
        f"""
        q = bf16[2,64,8,128] parameter(0)
        k = bf16[2,64,4,128] parameter(1)
        v = bf16[2,64,4,128] parameter(2)
        l = f32[2,8,64] parameter(3)
        c = bf16[2,64,8,128] parameter(4)
        d = bf16[2,64,8,128] parameter(5)
        a = ({results}) custom-call({names}),
          custom_call_target="__flash_attention${target}", backend_config={config}
        ROOT r = bf16[2,64,8,128] get-tuple-element(a), index=0
        """
    )
    return op


def test_flash_attention_does_the_work_of_the_pairs_that_the_mask_leaves() -> None:
    forward, backward = _work(_flash(is_backward=False)), _work(_flash(is_backward=True))
    pairs = 2 * 8 * 64 * 65 // 2
    assert dict(forward.flops)["bf16"] == 4 * 128 * pairs
    assert dict(backward.flops)["bf16"] == 10 * 128 * pairs
    query, key, row = 2 * 64 * 8 * 128 * 2, 2 * 64 * 4 * 128 * 2, 2 * 8 * 64 * 4
    # No scores: queries, keys, values, results and a number for each row.
    assert (forward.bytes_read, forward.bytes_written) == (query + 2 * key, query + row)
    # What the kernel works on beside its results is no result.
    assert (backward.bytes_read, backward.bytes_written) == (
        3 * query + 2 * key + row,
        query + 2 * key,
    )


def test_latent_vectors_are_read_once_for_keys_and_values() -> None:
    op, *_ = entry_ops(
        """
        q = bf16[4,1,16,576] parameter(0)
        c = bf16[4,1,2048,576] parameter(1)
        ROOT a = bf16[4,1,16,512] custom-call(q, c), custom_call_target="__flash_mla$decode"
        """
    )
    (fused,) = attentions(op)
    assert fused.is_decoding
    assert fused.cache_bytes == 4 * 2048 * 576 * 2
    work = _work(op)
    assert dict(work.flops)["bf16"] == 2 * 4 * 16 * 2048 * (576 + 512)
    assert work.bytes_read == fused.cache_bytes + 4 * 16 * 576 * 2
    assert work.bytes_written == 4 * 16 * 512 * 2


def test_chosen_vectors_are_read_for_each_query_or_once_if_fewer() -> None:
    op, *_ = entry_ops(
        """
        q = bf16[1,64,16,576] parameter(0)
        c = bf16[1,1,8192,576] parameter(1)
        p = s32[1,64,32] parameter(2)
        ROOT a = bf16[1,64,16,512] custom-call(q, c, p), custom_call_target="__flash_mla$sparse"
        """
    )
    (fused,) = attentions(op)
    assert (fused.query_length, fused.key_length, fused.is_of_chosen) == (64, 32, True)
    work = _work(op)
    assert dict(work.flops)["bf16"] == 2 * 64 * 16 * 32 * (576 + 512)
    chosen = 64 * 32 * 576 * 2
    assert work.bytes_read == chosen + 64 * 16 * 576 * 2 + 64 * 32 * 4


@pytest.mark.parametrize(("new", "pairs"), [(1, 4096), (4096, 4096 * 4097 // 2)])
def test_an_index_rates_what_is_earlier_and_reads_no_values(new: int, pairs: int) -> None:
    op, *_ = entry_ops(
        f"""
        q = f8e4m3fn[2,{new},64,128] parameter(0)
        k = f8e4m3fn[2,1,4096,128] parameter(1)
        s = bf16[2,{new},64] parameter(2)
        ROOT a = f32[2,{new},4096] custom-call(q, k, s),
          custom_call_target="__deep_gemm$mqa_logits"
        """
    )
    (fused,) = attentions(op)
    assert fused.only_rates
    assert fused.cache_bytes == 2 * 4096 * 128
    work = _work(op)
    assert dict(work.flops) == {"f8E4M3FN": 2 * 128 * 2 * 64 * pairs, "f32": 3 * 2 * 64 * pairs}
    assert work.transcendentals == 0
    assert work.bytes_written == 2 * new * 4096 * 4


def _attention(target: str = "Softmax", mask: str = "NO_MASK", more: str = "") -> Op:
    numbers = (
        '"bmm2_dot_dimension_numbers":{"lhs_contracting_dimensions":["3"],'
        '"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0","1"],'
        '"rhs_batch_dimensions":["0","2"]}'
    )
    config = (
        '{"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":["2","8","64",'
        f'"64"]}},"mask_type":"{mask}",{numbers}{more}}}}}'
    )
    op, *_ = entry_ops(
        f"""
        q = bf16[2,64,8,128] parameter(0)
        k = bf16[2,64,4,128] parameter(1)
        v = bf16[2,64,4,32] parameter(2)
        a = (bf16[2,64,8,32], u8[0]) custom-call(q, k, v),
          custom_call_target="__cudnn$fmha{target}", backend_config={config}
        ROOT r = bf16[2,64,8,32] get-tuple-element(a), index=0
        """
    )
    return op


def _the_attention(**options: Any) -> Attention:
    (fused,) = attentions(_attention(**options))
    return fused


def test_attention_has_its_shape_from_operands_and_scores() -> None:
    fused = _the_attention()
    assert (fused.batch, fused.heads, fused.key_heads) == (2, 8, 4)
    assert (fused.query_length, fused.key_length) == (64, 64)
    assert (fused.head_size, fused.value_size, fused.multiplied) == (128, 32, "bf16")
    assert fused.flops == 2 * (2 * 8 * 64 * 64) * (128 + 32)


@pytest.mark.parametrize(
    ("mask", "more", "seen"),
    [
        ("NO_MASK", "", 64 * 64),
        ("CAUSAL", "", 64 * 65 // 2),
        ("CAUSAL", ',"sliding_window_length":1', 64),
        ("CAUSAL", ',"sliding_window_length":2', 1 + 63 * 2),
    ],
)
def test_a_mask_leaves_fewer_scores(mask: str, more: str, seen: int) -> None:
    assert _the_attention(mask=mask, more=more).scores == 2 * 8 * seen


def test_gradients_of_attention_are_five_products() -> None:
    fused = _the_attention(target="SoftmaxBackward")
    assert fused.is_backward
    assert fused.flops == 2 * fused.scores * (3 * 128 + 2 * 32)


def test_attention_reads_its_operands_once() -> None:
    work = _work(_attention())
    scores = 2 * 8 * 64 * 64
    assert work.bytes_read == 2 * 2 * 64 * (8 * 128 + 4 * 128 + 4 * 32)
    assert work.bytes_written == 2 * (2 * 64 * 8 * 32)
    assert work.transcendentals == scores
    assert dict(work.flops) == {"bf16": 2 * scores * 160, "f32": 4 * scores}


def test_a_causal_mask_of_any_length_is_counted_at_once() -> None:
    attention = Attention(
        batch=1,
        heads=1,
        key_heads=1,
        query_length=2**40,
        key_length=2**40,
        head_size=64,
        value_size=64,
        is_causal=True,
        is_backward=False,
        has_bias=False,
        dropout_rate=0.0,
        window=0,
        multiplied="bf16",
    )

    assert attention.scores == 2**39 * (2**40 + 1)


def test_every_field_of_cudnns_configuration_is_known_or_refused() -> None:
    fields = ',"seed":42,"fmha_scale":0.1,"is_flash_attention":true,"algorithm":{"algo_id":"0"}'
    assert _the_attention(more=fields) == _the_attention()
    with pytest.raises(CostError, match="unknown field `is_ragged`"):
        attentions(_attention(more=',"is_ragged":true'))
    with pytest.raises(CostError, match="mask ALIBI of cuDNN's attention has no model"):
        attentions(_attention(mask="ALIBI"))


def test_packed_sequences_are_one_each_and_said_to_be() -> None:
    packed = _attention(more=',"max_seg_per_batch":4')
    (leaf,) = expand(packed)
    assert isinstance(leaf, Leaf)
    assert leaf.work == _work(_attention())
    assert leaf.assumption.startswith("rows of up to 4 packed sequences are priced as one")
    (plain,) = expand(_attention())
    assert isinstance(plain, Leaf)
    assert plain.assumption == ""


def _decoding(*, pages: int = 0, window: int = 0) -> Op:
    length = pages * 16 if pages else 1024
    batch = f"{pages},16" if pages else f"2,{length}"
    more = f'"is_paged_attention":{"true" if pages else "false"},"sliding_window_length":{window}'
    numbers = '"bmm2_dot_dimension_numbers":{"rhs_batch_dimensions":["0","2"]}'
    scored = 16 if pages else length
    table = "n = s32[2] parameter(3)\n t = s32[2,1,64,1] parameter(4)\n" if pages else ""
    tables = ", n, n, t, t" if pages else ""
    config = (
        '{"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":["2","8","1",'
        f'"{scored}"]}},"mask_type":"PADDING",{numbers},{more}}}}}'
    )
    op, *_ = entry_ops(
        f"""
        q = bf16[2,1,8,128] parameter(0)
        k = bf16[{batch},4,128] parameter(1)
        v = bf16[{batch},4,128] parameter(2)
        {table}
        a = (bf16[2,1,8,128], u8[0]) custom-call(q, k, v{tables}),
          custom_call_target="__cudnn$fmhaSoftmax", backend_config={config}
        ROOT r = bf16[2,1,8,128] get-tuple-element(a), index=0
        """
    )
    return op


def test_one_query_over_a_cache_is_decoding() -> None:
    (fused,) = attentions(_decoding())
    assert fused.is_decoding
    assert fused.cache_bytes == 2 * 2 * 1024 * 4 * 128 * 2
    assert fused.flops == 2 * 2 * 8 * 1024 * 256
    (windowed,) = attentions(_decoding(window=256))
    assert windowed.cache_bytes == fused.cache_bytes // 4
    assert not _the_attention().is_decoding


def test_of_all_pages_those_of_the_sequences_are_read() -> None:
    (fused,) = attentions(_decoding(pages=1000))
    assert fused.is_paged
    # Its tables have room for 64 pages of 16; the configuration has one page.
    assert fused.key_length == 1024
    query_bytes = 2 * 2 * 8 * 128 + 4 * (2 + 2 * 64)
    assert _work(_decoding(pages=1000)).bytes_read == fused.cache_bytes + query_bytes
    # No more than there are.
    assert _work(_decoding(pages=10)).bytes_read == 2 * 2 * 10 * 16 * 4 * 128 + query_bytes
