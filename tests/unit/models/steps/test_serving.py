"""Prefill and decode: the values that a cache leads to, what is donated, and FLOPs."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.models.flops import model_flops
from hespas.models.model import Model
from hespas.program.program import Program, all_ops, is_communication_op, shape_of
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.work.attention import attentions
from hespas.work.expand import expand, total
from small_models import LATENT, SMALL

SERVED = {
    **SMALL,
    "layers": "2",
    "mesh": "tp=1",
}
FAMILIES = {
    "llama3-8b": {},
    "gpt3-125m": {"kv_heads": "4"},
    "gemma3-12b": {},
    "mixtral-8x7b": {"experts": "4", "expert_mlp": "32", "capacity_percent": "400"},
    "deepseek-v3": {
        **LATENT,
        "experts": "4",
        "chosen": "2",
        "expert_mlp": "32",
        "capacity_percent": "400",
        "dense_layers": "1",
    },
}
PROMPT, CONTEXT, BATCH = 7, 8, 2


def filled(like: Any, key: jax.Array) -> Any:
    """Return small random arrays for abstract ones."""
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    return tree.unflatten(
        [
            (0.3 * jax.random.normal(each, leaf.shape)).astype(leaf.dtype)
            for each, leaf in zip(keys, leaves, strict=True)
        ]
    )


def run(name: str, options: dict[str, str], *arguments: Any) -> Any:
    step = model_named(name).step(SERVED | options | {"dtype": "f32", "cache_dtype": "f32"})
    # A copy for each step: its caches are donated.
    copied = jax.tree.map(jnp.array, arguments)
    with jax.sharding.set_mesh(jax.make_mesh((1,), ("tp",), axis_types=(AUTO,))):
        return jax.jit(step.function.__wrapped__)(*copied)


AUTO = jax.sharding.AxisType.Auto


def windowed(name: str) -> Model:
    """Return a model whose windows are three tokens long."""
    model = model_named(name)
    settings = model.settings
    kinds = tuple(replace(kind, window=min(kind.window, 3)) for kind in settings.pattern)
    return replace(model, settings=replace(settings, pattern=kinds))


def test_a_window_is_cached_as_a_ring() -> None:
    """A token's keys are in one place, whether of the prompt or made after it."""
    common = SERVED | {"batch": str(BATCH), "attention": "unfused"}
    common |= {"weight_dtype": "f32", "dtype": "f32", "cache_dtype": "f32"}

    def applied(step: str, more: dict[str, str], *arguments: Any) -> Any:
        function = windowed(f"gemma3-12b-{step}").step(common | more).function
        with jax.sharding.set_mesh(jax.make_mesh((1,), ("tp",), axis_types=(AUTO,))):
            return jax.jit(function.__wrapped__)(*jax.tree.map(jnp.array, arguments))

    whole, before = {"sequence": str(CONTEXT)}, {"sequence": str(PROMPT)}
    weights, caches, _ = windowed("gemma3-12b-prefill").step(common | whole).arguments
    assert {each.shape[2] for each in jax.tree.leaves(caches)} == {3}
    weights, empty = filled(weights, jax.random.key(1)), jax.tree.map(jnp.zeros_like, caches)
    tokens = jax.random.randint(jax.random.key(2), (BATCH, CONTEXT), 0, 256)
    prompt = {"tokens": tokens[:, :PROMPT], "position": 0}
    _, filled_caches = applied("prefill", before, weights, empty, prompt)
    last, cached = applied("prefill", whole, weights, empty, {"tokens": tokens, "position": 0})
    new = {"tokens": tokens[:, PROMPT:], "position": PROMPT}
    again, written = applied("decode", {"context": str(CONTEXT)}, weights, filled_caches, new)
    assert np.array_equal(last, again)
    for one, other in zip(jax.tree.leaves(cached), jax.tree.leaves(written), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_sinks_over_a_cache_are_of_a_fused_kernel() -> None:
    options = {"context": "256", "batch": "4", "layers": "2", "attention": "cudnn"}
    name = "openai/gpt-oss-20b:decode"
    program = load_source(partitioned(export_model(name, options)).content, name=name)
    lengths = [each.key_length for op in all_ops(program) for each in attentions(op)]
    assert lengths == [128, 256]


@pytest.mark.parametrize(
    ("family", "paged"),
    [
        ("llama3-8b", False),
        ("deepseek-v3", False),
        ("deepseek-v3", True),
        *(
            pytest.param(family, False, marks=pytest.mark.rest)
            for family in FAMILIES
            if family not in {"llama3-8b", "deepseek-v3"}
        ),
        pytest.param("llama3-8b", True, marks=pytest.mark.rest),
    ],
)
def test_a_token_over_a_cache_is_that_of_the_whole_prompt(family: str, *, paged: bool) -> None:
    pages = {"page_size": "4"} if paged else {}
    options = FAMILIES[family] | {"batch": str(BATCH), "weight_dtype": "f32"} | pages
    whole = options | {"sequence": str(CONTEXT), "attention": "unfused"}
    step = model_named(f"{family}-prefill").step(SERVED | whole | {"cache_dtype": "f32"})
    weights, caches, given = step.arguments
    weights = filled(weights, jax.random.key(1))
    empty = jax.tree.map(jnp.zeros_like, caches)
    tokens = jax.random.randint(jax.random.key(2), (BATCH, CONTEXT), 0, 256)
    table = jnp.asarray([[2, 0], [1, 3]])[:, : given["pages"].shape[1]] if paged else None
    shared = {} if table is None else {"pages": table}
    last, filled_caches = run(
        f"{family}-prefill", whole, weights, empty, {"tokens": tokens, "position": 0, **shared}
    )
    # The last token again, over the cache of all before it.
    arguments = {"tokens": tokens[:, PROMPT:], "position": PROMPT, **shared}
    again, same_caches = run(
        f"{family}-decode", options | {"context": str(CONTEXT)}, weights, filled_caches, arguments
    )
    assert np.array_equal(last, again)
    for one, other in zip(
        jax.tree.leaves(filled_caches), jax.tree.leaves(same_caches), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["llama3-8b", "gemma3-12b", "deepseek-v3"])
def test_stages_one_after_another_compute_the_whole_step(family: str) -> None:
    options = FAMILIES[family] | {"layers": "3", "batch": str(BATCH), "weight_dtype": "f32"}
    options |= {"sequence": str(PROMPT), "attention": "unfused"}
    name = f"{family}-prefill"
    common = SERVED | options | {"dtype": "f32", "cache_dtype": "f32"}
    weights, caches, _ = model_named(name).step(common).arguments
    weights = filled(weights, jax.random.key(1))
    empty = jax.tree.map(jnp.zeros_like, caches)
    tokens = jax.random.randint(jax.random.key(2), (BATCH, PROMPT), 0, 256)
    given = {"tokens": tokens, "position": 0}
    last, whole_caches = run(name, options, weights, empty, given)
    passed, begin, made = given, 0, tokens
    for stage in ("first", "middle", "last"):
        of_stage = {**options, "layers": "1", "stage": stage, "first_layer": str(begin)}
        wanted = model_named(name).step(common | of_stage).arguments[0]
        layer = weights["layers_first"][begin : begin + 1]
        own = {each: weights[each] for each in wanted} | {"layers_first": layer}
        assert jax.tree.structure(own) == jax.tree.structure(wanted)
        made, cache = run(name, of_stage, own, empty[begin : begin + 1], passed)
        for one, other in zip(cache[0].values(), whole_caches[begin].values(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        passed, begin = {**given, "activations": made}, begin + 1
    assert np.array_equal(made, last)


def test_logits_are_of_the_last_stage_alone() -> None:
    shared = SERVED | {"layers": "1"}
    settings = model_named("llama3-8b-decode")
    parts = [
        model_flops(settings.with_options(shared | {"stage": stage, "first_layer": first}))
        for stage, first in (("first", "0"), ("last", "1"))
    ]
    whole = model_flops(settings.with_options(shared | {"layers": "2"}))
    assert sum(part or 0 for part in parts) == whole
    assert (parts[0] or 0) < (parts[1] or 0)


SELECTED = {
    **FAMILIES["deepseek-v3"],
    "indexed_tokens": "64",
    "index_heads": "2",
    "index_size": "16",
    "weight_dtype": "f32",
    "attention": "unfused",
}
LONG = 256


def test_a_long_prompt_sees_the_tokens_that_its_index_chooses() -> None:
    """The last token is that of a decode step, which reads the chosen ones of a cache."""
    whole = SELECTED | {"batch": str(BATCH), "sequence": str(LONG)}
    settings = model_named("deepseek-v3-prefill").with_options(SERVED | whole)
    assert settings.selects_tokens
    step = model_named("deepseek-v3-prefill").step(SERVED | whole | {"cache_dtype": "f32"})
    weights, caches, _ = step.arguments
    weights = filled(weights, jax.random.key(1))
    empty = jax.tree.map(jnp.zeros_like, caches)
    tokens = jax.random.randint(jax.random.key(2), (BATCH, LONG), 0, 256)
    given = {"tokens": tokens, "position": 0}
    last, cached = run("deepseek-v3-prefill", whole, weights, empty, given)
    options = SELECTED | {"batch": str(BATCH), "context": str(LONG)}
    again, _ = run(
        "deepseek-v3-decode",
        options,
        weights,
        cached,
        {"tokens": tokens[:, -1:], "position": LONG - 1},
    )
    assert np.array_equal(last, again)


def test_short_prompts_and_those_without_an_index_see_all_tokens() -> None:
    for changed in ({"sequence": "128"}, {"indexed_tokens": "0"}):
        options = SERVED | SELECTED | {"sequence": str(LONG)} | changed
        assert not model_named("deepseek-v3-prefill").with_options(options).selects_tokens
    with pytest.raises(ConfigError, match="128 queries at a time"):
        model_named("deepseek-v3-prefill").step(SERVED | SELECTED | {"sequence": "300"})


def exported(name: str, **options: str) -> Program:
    return load_source(partitioned(export_model(name, SERVED | options)).content, name=name)


INDEX = {"indexed_tokens": "64", "index_heads": "2", "index_size": "16"}


@pytest.mark.parametrize("page_size", ["0", "16"])
def test_caches_are_donated(page_size: str) -> None:
    options = SERVED | {"context": "64", "page_size": page_size}
    text = partitioned(export_model("llama3-8b-decode", options)).content
    assert text.count(b"tf.aliasing_output") == 2 * int(SERVED["layers"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama3-8b-prefill", {"sequence": "64"}),
        ("llama3-8b-decode", {"context": "64", "batch": "4"}),
        ("llama3-8b-decode", {"context": "64", "new_tokens": "3"}),
        ("gpt3-125m-decode", {"context": "64", "kv_heads": "4"}),
        ("deepseek-v3-prefill", {"sequence": "64", **LATENT, "layers": "3"}),
        ("deepseek-v3-decode", {"context": "64", **LATENT, "layers": "3"}),
        ("deepseek-v3-decode", {"context": "256", **LATENT, "layers": "3", **INDEX}),
    ],
)
def test_products_are_the_closed_form(name: str, options: dict[str, str]) -> None:
    given = options | {"attention": "unfused"}
    ops = [op for op in all_ops(exported(name, **given)) if op.kind == "dot_general"]
    done = sum(count for _, count in total(expand(ops)).flops)
    needed = model_flops(model_named(name).with_options(SERVED | given))
    assert done == pytest.approx(needed, rel=0.02)


def test_a_divided_step_sums_twice_a_layer() -> None:
    program = exported("llama3-8b-decode", context="64", mesh="tp=2")
    kinds = [op.kind for op in all_ops(program) if is_communication_op(op)]
    in_layers = [op for op in all_ops(program) if op.kind == "all_reduce" and "layers_" in op.scope]
    assert len(in_layers) == 2 * int(SERVED["layers"])
    assert set(kinds) == {"all_reduce", "all_gather"}


@pytest.mark.parametrize(
    ("more", "element_bytes"),
    [({}, 2.0), ({"page_size": "16"}, 2.0), ({"cache_dtype": "f8"}, 1.0), ({"mesh": "tp=2"}, 2.0)],
)
def test_a_fused_kernel_reads_the_cache_once(more: dict[str, str], element_bytes: float) -> None:
    options = {"context": "64", "batch": "4", "attention": "cudnn"} | more
    program = exported("llama3-8b-decode", **options)
    found = [each for op in all_ops(program) for each in attentions(op)]
    assert len(found) == int(SERVED["layers"])
    devices = 2 if "mesh" in more else 1
    (first, _) = found
    assert first.is_paged == ("page_size" in more)
    assert (first.heads, first.key_heads) == (4 // devices, 2 // devices)
    assert (first.query_length, first.key_length) == (1, 64)
    assert first.cache_bytes == 4 * 64 * 2 * 2 * 16 * element_bytes / devices


def test_a_fused_kernel_reads_latent_vectors_once() -> None:
    options = {**LATENT, "context": "64", "batch": "4", "layers": "3", "mesh": "tp=2"}
    program = exported("deepseek-v3-decode", **options, attention="flashmla")
    found = [each for op in all_ops(program) for each in attentions(op)]
    assert len(found) == 3
    size = int(LATENT["kv_rank"]) + int(LATENT["rope_size"])
    for each in found:
        assert (each.heads, each.key_heads, each.query_length) == (2, 1, 1)
        assert (each.head_size, each.value_size) == (size, int(LATENT["kv_rank"]))
        assert each.cache_bytes == 4 * 64 * size * 2


@pytest.mark.parametrize(("step", "length"), [("prefill", "sequence"), ("decode", "context")])
def test_kernels_of_an_index_rate_on_each_device_and_attend_by_head(step: str, length: str) -> None:
    options = {**SELECTED, "dtype": "bf16", "weight_dtype": "bf16", "layers": "2", "mesh": "tp=2"}
    options |= {"attention": "flashmla", "batch": "4", length: str(LONG)}
    program = exported(f"deepseek-v3-{step}", **options)
    found = [each for op in all_ops(program) for each in attentions(op)]
    rated, attended = found[::2], found[1::2]
    assert [each.only_rates for each in rated] == [True, True]
    assert [each.is_of_chosen for each in attended] == [True, True]
    new = LONG if step == "prefill" else 1
    for each in rated:
        assert (each.heads, each.query_length, each.key_length) == (2, new, LONG)
        assert (each.multiplied, each.element_bytes) == ("f8E4M3FN", 1)
    for each in attended:
        assert (each.heads, each.query_length, each.key_length) == (2, new, 64)
    scores = [op for op in all_ops(program) if op.kind == "dot_general" and "indexer" in op.scope]
    assert all(f"{LONG}x{LONG}" not in str(op.results[0].type) for op in scores)


@pytest.mark.parametrize("attention", ["flashmla", "unfused"])
@pytest.mark.parametrize(("step", "length"), [("prefill", "sequence"), ("decode", "context")])
def test_tokens_are_chosen_where_they_are(step: str, length: str, attention: str) -> None:
    options = {**SELECTED, "dtype": "bf16", "weight_dtype": "bf16", "layers": "2"}
    options |= {"mesh": "expert=2,tp=2", "attention": attention, "batch": "4", length: str(LONG)}
    program = exported(f"deepseek-v3-{step}", **options)
    moved = [op for op in all_ops(program) if is_communication_op(op) and op.kind == "all_gather"]
    rows = [op for op in moved if f"x{LONG}" in str(op.results[0].type)]
    assert rows == []


def test_prompts_no_longer_than_what_an_index_chooses_are_not_rated() -> None:
    def sorts(sequence: int) -> int:
        options = {**SELECTED, "batch": "4", "sequence": str(sequence)}
        ops = all_ops(exported("deepseek-v3-prefill", **options))
        return sum(op.kind == "sort" and "indexer" in op.scope for op in ops)

    assert sorts(LONG) > 0
    assert sorts(64) == 0


@pytest.mark.parametrize("step", ["prefill", "decode"])
def test_weights_of_an_index_that_is_not_asked_are_held(step: str) -> None:
    def arguments(tokens: int) -> int:
        length = {"sequence" if step == "prefill" else "context": str(tokens)}
        program = exported(f"deepseek-v3-{step}", **{**SELECTED, "batch": "4"}, **length)
        return len(program.main.body.arguments)

    assert arguments(64) == arguments(LONG)


def test_devices_multiply_the_tokens_that_chose_their_experts() -> None:
    options = {**FAMILIES["mixtral-8x7b"], "capacity_percent": "100", "mesh": "expert=2"}
    program = exported("mixtral-8x7b-decode", **options, context="64", batch="8", dropless="true")
    ops = list(all_ops(program))
    rows = {shape_of(op.operands[0])[0] for op in ops if op.kind == "ragged_dot"}
    # 8 sequences of each device choose 2 experts: as many choices arrive as leave.
    assert rows == {16}
    assert sum(op.kind == "all_to_all" for op in ops) >= 2 * int(SERVED["layers"])


def test_of_a_window_what_it_leaves_out_is_cut_off() -> None:
    options = {"context": "2048", "batch": "4", "attention": "cudnn", "layers": "6"}
    program = exported("gemma3-12b-decode", **options)
    lengths = [each.key_length for op in all_ops(program) for each in attentions(op)]
    assert lengths == [1024] * 5 + [2048]


def test_a_fused_kernel_reads_pages_in_8_bits() -> None:
    options = {"context": "64", "batch": "4", "attention": "cudnn", "page_size": "16"}
    program = exported("llama3-8b-decode", **options, cache_dtype="f8", dtype="bf16")
    found = [each for op in all_ops(program) for each in attentions(op)]
    read = {(each.is_paged, each.key_length, each.element_bytes, each.multiplied) for each in found}
    assert read == {(True, 64, 1.0, "bf16")}


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("step", ["prefill", "decode"])
@pytest.mark.parametrize("dropless", ["false", "true"])
def test_weights_of_8_bits_are_multiplied_as_they_are_stored(
    name: str, step: str, dropless: str
) -> None:
    options = FAMILIES[name] | {"weight_dtype": "f8"}
    options |= {"dropless": dropless} if "experts" in options else {}
    ops = list(all_ops(exported(f"{name}-{step}", **options)))
    products = [op for op in ops if op.kind in {"dot_general", "ragged_dot"}]
    small = [op for op in products if "f8E4M3FN" in str(op.operands[1].type)]
    assert len(small) >= 4 * int(SERVED["layers"])
    transposed = [
        op
        for op in ops
        if op.kind in {"transpose", "convert"} and "f8E4M3FN" in str(op.operands[0].type)
    ]
    assert transposed == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama3-8b-decode", {"context": "100", "page_size": "16"}, "not divided into pages of 16"),
        ("llama3-8b-decode", {"context": "4", "new_tokens": "5"}, "new_tokens = 5 of a context"),
        ("llama3-8b-decode", {"new_tokens": "2", "attention": "cudnn"}, "no mask for 2 new tokens"),
        ("gemma2-2b-decode", {"attention": "cudnn", "dtype": "bf16"}, "no cap of scores"),
        ("deepseek-v3-decode", {**LATENT, "attention": "cudnn"}, "no heads of 24"),
        ("llama3-8b-decode", {"attention": "flashmla"}, "a cache of latent vectors"),
        (
            "deepseek-v3-prefill",
            {**LATENT, "attention": "flashmla"},
            "longer prompts than an index",
        ),
        (
            "deepseek-v3-decode",
            {**LATENT, "attention": "flashmla", "new_tokens": "2"},
            "FlashMLA was measured for one new token, not 2",
        ),
        (
            "deepseek-v3-decode",
            {**LATENT, "attention": "flashmla", "cache_dtype": "f32"},
            "FlashMLA has no price for a cache in f32",
        ),
        (
            "llama3-8b-decode",
            {"attention": "cudnn", "cache_dtype": "f16"},
            "computes in the cache's type, f16, and dtype is bf16",
        ),
        (
            "llama3-8b-decode",
            {"mesh": "tp=4", "kv_heads": "3", "heads": "12"},
            "kv_heads = 3 cannot be divided by tp=4",
        ),
        ("llama3-8b-decode", {"mesh": "fsdp=2"}, "mesh axis fsdp divides nothing"),
        ("llama3-8b-decode", {"first_layer": "1"}, "first_layer = 1 of what begins with"),
        ("llama3-8b-decode", {"cache_dtype": "f4"}, "cache_dtype is 'f4'; known: bf16"),
    ],
)
def test_settings_that_do_not_fit(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_named(name).step(SERVED | options)


def test_more_devices_than_heads_of_keys_and_values_hold_one_each() -> None:
    model = model_named("llama3-8b-decode")
    held = {
        devices: model.step(SERVED | {"mesh": f"tp={devices}"}).argument_bytes(1)
        for devices in (1, 2, 4)
    }
    assert held[1] == 2 * held[2]
    assert held[4] == held[2]
