"""Families of language models: parameters, FLOPs, collectives, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path

import jax
import pytest

from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.models.catalogue import model_named, models
from hespas.models.flops import model_flops
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes, Part, PartProgram
from hespas.models.parameters import parameters as parameters_of
from hespas.models.weights import layer_weights
from hespas.program.program import Op, Program, all_ops, is_communication_op
from hespas.program.types import TensorType, size_bytes
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.work.expand import expand, total
from small_models import EXPERTS, LATENT, SMALL

TRAINING = {**SMALL, "sequence": "64", "attention": "unfused"}
PUBLISHED = {
    # As the papers print them, in B; of GPT-3 rounded, with its vocabulary padded here.
    "llama2-70b": (69.0, 0.001),
    "llama3.1-405b": (405.0, 0.003),
    "mistral-7b": (7.24, 0.001),
    "gpt3-125m": (0.125, 0.01),
    "gpt3-350m": (0.35, 0.02),
    "gpt3-760m": (0.76, 0.01),
    "gpt3-1.3b": (1.3, 0.015),
    "gpt3-2.7b": (2.7, 0.02),
    "gpt3-6.7b": (6.7, 0.01),
    "gpt3-13b": (13.0, 0.012),
    "gpt3-175b": (175.0, 0.003),
    "mixtral-8x7b": (46.7, 0.001),
    "mixtral-8x22b": (141.0, 0.003),
    "deepseek-v3": (671.0, 0.0001),
    "gemma2-2b": (2.614, 0.001),
    "gemma2-9b": (9.242, 0.001),
    "gemma2-27b": (27.227, 0.001),
    "gemma3-12b": (11.77, 0.001),
    "gemma3-27b": (27.01, 0.001),
}


def exported(name: str, **options: str) -> Program:
    return load_source(partitioned(export_model(name, options)).content, name=name)


def communication(program: Program) -> Counter[str]:
    return Counter(op.kind for op in all_ops(program) if is_communication_op(op))


def products(program: Program) -> int:
    ops = [op for op in all_ops(program) if op.kind in {"dot_general", "ragged_dot"}]
    return sum(count for _, count in total(expand(ops)).flops)


def parameters(name: str, **options: str) -> int:
    state = model_named(name).step(options).arguments[0]
    return sum(prod(leaf.shape) for leaf in jax.tree.leaves(state.get("weights", state)))


def test_the_published_counts_are_of_all_that_train() -> None:
    trained = {
        name
        for name, model in models().items()
        if isinstance(model.settings, LanguageModel) and not name.endswith(("prefill", "decode"))
    }
    of_maxtext = {name for name in trained if "llama" in name} - set(PUBLISHED)
    assert trained - of_maxtext == set(PUBLISHED)
    assert len(of_maxtext) == 11  # tests of hespas.models.steps.transformer count them


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    published, within = PUBLISHED[name]
    count = parameters(name)
    assert count / 1e9 == pytest.approx(published, rel=within)
    assert f"{count / 1e9:.3f} B" in model_named(name).summary
    assert parameters(name, scan="true") == count
    assert parameters(f"{name}-decode", mesh="tp=1", weight_dtype="bf16") == count


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt3-125m", {"kv_heads": "4"}),
        ("mixtral-8x7b", EXPERTS),
        ("mixtral-8x7b", {**EXPERTS, "dropless": "true"}),
        ("deepseek-v3", {**EXPERTS, **LATENT}),
        ("gemma3-12b", {}),
        ("deepseek-v3", {**EXPERTS, **LATENT, "mtp_layers": "2"}),
    ],
)
def test_products_of_training_are_the_closed_form(name: str, options: dict[str, str]) -> None:
    """All but what a window leaves out, which the closed form does not count."""
    options = TRAINING | options | {"mesh": "data=1", "remat": "none"}
    needed = model_flops(model_named(name).with_options(options))
    assert needed is not None
    assert products(exported(name, **options)) == pytest.approx(needed, rel=0.02)


def test_documents_of_a_sequence_do_not_see_each_other() -> None:
    options = TRAINING | {"mesh": "data=1", "remat": "none", "document_length": "16"}
    whole, packed = (
        model_named("gpt3-125m").with_options({**options, "document_length": length})
        for length in ("64", "16")
    )
    tokens, heads_and_layers = 64, 4 * 4
    left_out = 3 * tokens * (64 - 16) * heads_and_layers * 2 * (16 + 16)
    needed = [model_flops(each) for each in (whole, packed)]
    assert needed[0] is not None
    assert needed[1] == needed[0] - left_out
    assert products(exported("gpt3-125m", **options)) == pytest.approx(needed[1], rel=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document_length": "0"}, "document_length is '0'"),
        ({"document_length": "128"}, "document_length = 128 of sequences of 64"),
        ({"document_length": "24"}, "not divided into chunks of 24"),
        ({"document_length": "16", "mesh": "context=2"}, "not divided into chunks of 16"),
    ],
)
def test_documents_that_cannot_be_kept_apart_are_refused(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        model_named("gpt3-125m").with_options(TRAINING | options).check()


@pytest.mark.parametrize("scan", ["true", "false"])
def test_a_loop_has_as_many_products(scan: str) -> None:
    """Twelve layers are a loop over a loop and a layer, whose products stand in it once."""
    options = TRAINING | {"mesh": "data=1", "remat": "full", "layers": "12", "scan": scan}
    written = options | {"layers": "2" if scan == "true" else "12"}
    needed = model_flops(model_named("gemma3-12b").with_options(written))
    assert needed is not None
    logits = 2 * 64 * 64 * 256
    assert products(exported("gemma3-12b", **options)) == pytest.approx(
        (needed - 3 * logits) * 4 / 3 + 3 * logits, rel=0.02
    )


def test_layers_for_further_tokens_are_trained() -> None:
    options = TRAINING | EXPERTS | LATENT
    one, two = (parameters("deepseek-v3", mtp_layers=str(count), **options) for count in (1, 2))
    model = model_named("deepseek-v3").with_options(options | {"mtp_layers": "1"})
    assert isinstance(model, LanguageModel)
    kind, width = model.kinds[-1], model.sizes_of_layers.embedding
    sizes = {**model.sizes, **model.sizes_of(kind)}
    layer = sum(
        prod(sizes[name] for name in shape) for shape in layer_weights(model, kind).values()
    )
    # A layer, what joins a row and a token, the norms of both, and that before the head.
    assert (
        two - one == one - parameters("deepseek-v3", **options) == layer + 2 * width**2 + 3 * width
    )
    assert parameters_of(model) == one


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("deepseek-v3", {"mtp_layers": "17"}, "mtp_layers = 17"),
        ("nvidia/Nemotron-H-8B-Base-8K", {"mtp_layers": "1"}, "a feed-forward alone"),
        ("google/gemma-4-E2B", {"mtp_layers": "1"}, "inputs or keys of others"),
    ],
)
def test_layers_for_further_tokens_are_refused_where_they_cannot_be(
    name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        model_named(name).with_options(options).check()


def test_experts_are_reached_by_all_to_all() -> None:
    options = TRAINING | EXPERTS | {"scan": "true"}
    divided = communication(exported("mixtral-8x7b", mesh="expert=4", **options))
    # There and back, forward, again, and backward.
    assert divided["all_to_all"] == 6
    assert communication(exported("mixtral-8x7b", mesh="tp=2", **options))["all_to_all"] == 0


def test_norms_are_divided_by_tokens_where_asked() -> None:
    options = TRAINING | {"kv_heads": "4", "mesh": "tp=2", "remat": "none"}
    whole = communication(exported("gpt3-125m", **options))
    divided = communication(exported("gpt3-125m", sequence_parallel="true", **options))
    assert divided["all_gather"] > whole["all_gather"]


def test_divided_norms_are_whole_on_their_tokens_and_gradients_are_scattered_once() -> None:
    options = TRAINING | {"kv_heads": "4", "mesh": "tp=2", "remat": "none", "batch": "4"}
    program = fused(exported("gpt3-125m", sequence_parallel="true", **options))
    part_bytes = 4 * 64 * 64 * 2 // 2
    kinds = Counter(
        op.kind
        for op in all_ops(program)
        if is_communication_op(op) and "layers_" in op.scope
        if any(isinstance(value.type, TensorType) and value.type.rank == 3 for value in op.results)
        if any(size_bytes(value.type) >= part_bytes for value in op.results)
    )
    # Behind attention and behind the dense layer, forward and backward.
    assert kinds["reduce_scatter"] == 4 * int(SMALL["layers"])
    assert kinds["all_reduce"] == 0


@pytest.mark.parametrize("setting", ["f8", "f4"])
def test_products_in_few_bits_gather_what_is_rounded_already(setting: str) -> None:
    options = TRAINING | {"kv_heads": "4", "mesh": "tp=2", "batch": "4", "product_dtype": setting}
    program = fused(exported("gpt3-125m", sequence_parallel="true", **options))
    gathered = Counter(
        value.type.element.name
        for op in all_ops(program)
        if op.kind == "all_gather" and "layers_" in op.scope
        for value in op.operands
        if isinstance(value.type, TensorType) and value.type.rank == 3
    )
    # Before attention and before the dense layer, and what comes back to both.
    # XLA's partitioner gathers nothing in 4 bits.
    assert set(gathered) == {"f8E4M3FN"}
    assert gathered.total() >= 4 * int(SMALL["layers"])


def test_experts_multiply_in_4_bits_forward_and_backward() -> None:
    settings = {"layers": "1", "sequence": "64", "vocabulary": "512", "mesh": "expert=8"}
    program = exported("Qwen/Qwen3-30B-A3B", expert_product_dtype="f4", **settings)
    small = [
        op
        for op in all_ops(program)
        if op.kind == "dot_general" and "experts" in op.scope
        if {value.type.element.name for value in op.operands if isinstance(value.type, TensorType)}
        == {"f4E2M1FN"}
    ]
    assert len(small) >= 9


def test_zero_divides_states_and_gathers_weights_as_its_stages_say() -> None:
    options = TRAINING | {"kv_heads": "4", "mesh": "data=4", "batch": "2", "accumulation": "2"}
    stages = {
        zero: exported("gpt3-125m", zero=zero, scan="true", **options) for zero in ("0", "1", "3")
    }
    sizes = {
        zero: sum(size_bytes(value.type) for value in program.main.body.arguments)
        for zero, program in stages.items()
    }
    assert sizes["1"] == sizes["3"] < 0.3 * sizes["0"]
    gathers = {zero: communication(program)["all_gather"] for zero, program in stages.items()}
    assert gathers["0"] == 0 < gathers["1"]


def large_bytes(program: Program) -> Counter[tuple[bool, str]]:
    """Return what a device gives to collectives of a kilobyte or more, in loops and outside."""
    found: Counter[tuple[bool, str]] = Counter()

    def add(operations: Sequence[Op], *, is_inside: bool) -> None:
        for op in operations:
            size = sum(size_bytes(value.type) for value in op.operands)
            if is_communication_op(op) and size >= 1024:
                found[is_inside, op.kind] += size
            for region in op.regions:
                add(region.operations, is_inside=is_inside or op.kind == "while")

    add(program.main.body.operations, is_inside=False)
    return found


@pytest.mark.parametrize("mesh", ["data=4", "data=2,tp=2"])
def test_gradients_are_summed_as_often_as_the_stages_of_zero_say(mesh: str) -> None:
    """Stage 1 once a step, of f32 sums; stage 2 in each round, of bf16; weights come once in bf16.

    A reduce-scatter takes all gradients that a device has, an all-gather its part of the weights.
    """
    options = TRAINING | {"kv_heads": "4", "batch": "2", "accumulation": "2", "mesh": mesh}
    options |= {"scan": "true", "remat": "none"}
    divided = model_named("llama2-70b").step(options | {"zero": "1"})
    leaves = jax.tree.leaves(divided.arguments[0]["weights"])
    devices = divided.mesh.size("data")
    elements = devices * sum(
        prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves if len(leaf.shape) > 2
    )
    outer = [leaf for leaf in leaves if len(leaf.shape) == 2 and 256 in leaf.shape]
    elements += devices * sum(prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in outer)
    found = {
        zero: large_bytes(fused(exported("llama2-70b", **options, zero=zero))) for zero in "12"
    }
    assert found["1"][False, "reduce_scatter"] == 4 * elements
    assert found["2"][True, "reduce_scatter"] == 2 * elements
    assert found["1"][True, "reduce_scatter"] == found["2"][False, "reduce_scatter"] == 0
    for each in found.values():
        assert each[False, "all_gather"] == 2 * elements // devices


@pytest.mark.rest
def test_the_stages_of_zero_compute_the_same_step() -> None:
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "run_zero.py")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    assert set(found) == {"1", "2", "3"}
    assert max(found.values()) < 1e-5


@pytest.mark.parametrize("attention", ["unfused", "cudnn"])
def test_sequences_and_heads_change_places_by_an_all_to_all(attention: str) -> None:
    """Four forward and four backward, of queries, keys, values and results: none is gathered.

    Source: S. Jacobs et al., DeepSpeed Ulysses, 2023, section 3.1.
    """
    options = TRAINING | {"kv_heads": "4", "remat": "none", "attention": attention}
    program = exported("gpt3-125m", mesh="sequence=2", **options)
    counts = communication(program)
    of_device = 64 // 2 * 4 * 16 * 2
    assert counts["all_to_all"] == 8 * int(SMALL["layers"])
    for op in all_ops(program):
        if op.kind == "all_to_all":
            assert [size_bytes(value.type) for value in op.operands] == [of_device]
    gathered = [op for op in all_ops(program) if op.kind == "all_gather" and "layers_" in op.scope]
    assert not gathered


def test_latent_heads_are_divided_and_stay_where_they_are() -> None:
    """A device has the keys and values of its own heads: nothing is gathered."""
    options = TRAINING | EXPERTS | LATENT | {"remat": "none", "mesh": "tp=2"}
    program = exported("deepseek-v3", **options)
    assert communication(program)["all_gather"] == 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_fsdp_divides_all_weights_and_moments(name: str) -> None:
    """A device has its part of 12 bytes a parameter; norms and biases alone are whole."""
    devices = 32
    step = model_named(name).step({"scan": "true", "mesh": f"fsdp={devices}"})
    count = sum(prod(leaf.shape) for leaf in jax.tree.leaves(step.arguments[0]["weights"]))
    least = 12 * count / devices
    assert least <= step.argument_bytes(0) <= 1.05 * least


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_looked_up_tokens_come_to_their_device_at_once(name: str) -> None:
    """No array of activations is sent on: then all devices behave alike, and one is simulated."""
    options = TRAINING | EXPERTS | {"mesh": "expert=2,fsdp=4", "remat": "none", "scan": "true"}
    options |= LATENT | {"layers": "5"} if name == "deepseek-v3" else {}
    assert communication(exported(name, **options))["collective_permute"] == 0


def test_expert_weights_are_gathered_in_the_type_that_is_computed_in() -> None:
    options = TRAINING | EXPERTS | {"mesh": "fsdp=4", "remat": "none", "scan": "true"}
    gathered = {
        value.type.element.name
        for op in all_ops(exported("mixtral-8x7b", **options))
        if op.kind == "all_gather"
        for value in op.operands
        if isinstance(value.type, TensorType)
    }
    assert gathered - {"i32"} == {"bf16"}


def test_a_part_of_a_pipeline_has_the_weights_it_needs() -> None:
    mesh = MeshAxes(axes=(("pipe", 2), ("tp", 2)))
    given = TRAINING | {"kv_heads": "4", "mesh": "tp=2", "scan": "true"}
    parts = {
        "first": Part(mesh=mesh, layers=2, is_first=True),
        "last": Part(mesh=mesh, layers=2, is_last=True),
        "update": Part(mesh=mesh, layers=2, program=PartProgram.UPDATE),
    }
    weights = {
        name: set(model_named("gpt3-125m").part_step(given, part).arguments[0])
        for name, part in parts.items()
    }
    assert weights["first"] >= {"embedding", "positions"}
    assert weights["last"] >= {"embedding", "norm"}
    assert "positions" not in weights["last"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mixtral-8x7b", {"mesh": "expert=3"}, "experts = 8 cannot be divided by expert=3"),
        ("deepseek-v3", {"layers": "2", "mesh": "data=1", "scan": "true"}, "= 2: no layer has"),
        ("mixtral-8x7b", {"chosen": "9"}, "chosen = 9 of experts = 8; choose fewer"),
        ("mixtral-8x7b", {"mesh": "expert=2", "dropless": "true"}, "dropless products do not send"),
        ("gpt3-175b", {"mesh": "expert=2"}, "mesh axis expert divides nothing in this model"),
        ("llama3-8b", {"layers": "1000000"}, "layers = 1000000; give 2000 or less"),
        ("gpt3-175b", {"mesh": "tp=5"}, "heads = 96 cannot be divided by tp=5"),
        ("gpt3-175b", {"mesh": "sequence=7"}, "sequence = 2048 cannot be divided by sequence=7"),
        ("gpt3-175b", {"mesh": "fsdp=8", "zero": "1"}, "axis data, which the mesh fsdp=8 has not"),
        ("llama2-70b", {"heads": "33"}, "heads = 33 cannot be divided by kv_heads = 8"),
        ("llama3-8b", {"heads": "33"}, "heads = 33 cannot be divided by kv_heads = 8"),
        ("deepseek-v3", {"kv_heads": "64"}, "kv_heads = 64 of heads = 128: latent attention makes"),
        ("llama3-8b", {"sequence": "1000000000"}, "counts exactly up to 16777216; give 16777216"),
        ("gpt3-175b", {"sequence": "1000000000"}, "counts exactly up to 16777216; give 16777216"),
        ("gpt3-175b-decode", {"context": "20000000"}, "context = 20000000: positions are"),
        ("gpt3-175b", {"batch": "3000000000"}, "which no 32-bit index counts; give 2147483647"),
        ("gpt3-175b", {"zero": "4"}, "zero is 4; give 0, 1, 2 or 3"),
        (
            "gpt3-125m",
            {"mesh": "data=5", "zero": "1"},
            "embedding = 768 cannot be divided by the 5",
        ),
        ("gemma2-9b", {"attention": "cudnn"}, "no cap of scores; give attention unfused"),
        ("gemma2-9b", {"attention": "flash"}, "FlashAttention with a cap of scores has no price"),
        ("gpt3-125m", {"attention": "flash", "dtype": "f32"}, "FlashAttention computes in 16 bits"),
        ("gpt3-125m", {"attention": "flash", "head_size": "320"}, "has no heads of 320"),
        ("deepseek-v3", {"attention": "flash"}, "values as long as keys, and these are 128 and"),
        ("llama2-70b-decode", {"attention": "flash"}, "FlashAttention over a cache has no model"),
        ("gemma3-12b", {"mesh": "context=2", "attention": "cudnn"}, "neither a window nor a cap"),
        (
            "llama2-70b",
            {"mesh": "data=1", "batch": "3", "accumulation": "2"},
            "is not divided by accumulation = 2",
        ),
    ],
)
def test_settings_that_do_not_fit(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_named(name).step(options)
