"""The Llama-3-like step against the published one, and the options of the models."""

from __future__ import annotations

from collections import Counter
from math import prod

import jax
import pytest

from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Program, all_ops
from hespas.program.types import TensorType, size_bytes
from hespas.program.work import Work
from hespas.sources.exported import Exported, partitioned
from hespas.sources.function import export_model
from hespas.split.strategies import split_options, split_program
from hespas.work.attention import Attention, attentions
from hespas.work.expand import expand, total

PUBLISHED = {
    "dot_general": 208,
    "all_gather": 100,
    "all_reduce": 272,
    "reduce": 311,
    "transpose": 112,
    "select": 108,
    "reshape": 231,
}
PUBLISHED_TOTAL = 5124
SMALL = {"layers": "2", "sequence": "256", "vocabulary": "1024", "mesh": "fsdp=2,tp=2"}


@pytest.fixture(scope="module")
def program(llama3_100m: Exported) -> Program:
    return load_source(llama3_100m.content, name="llama3-100m")


def test_operations_are_those_published(program: Program) -> None:
    counts = Counter(op.kind for op in program.main.body.operations)
    assert {name: counts[name] for name in PUBLISHED} == PUBLISHED
    assert sum(counts.values()) == pytest.approx(PUBLISHED_TOTAL, rel=0.02)


def test_regions_are_those_published(program: Program) -> None:
    graph = split_program(program, split_options(strategy="linear_split"))
    assert (len(graph.compute_regions), len(graph.collective_regions)) == (374, 372)


def test_exporting_again_gives_the_same_bytes(llama3_100m: Exported) -> None:
    settings = {"attention": "unfused", "state_dtype": "bf16"}
    assert partitioned(export_model("llama3-100m", settings)).content == llama3_100m.content


def test_the_program_tells_its_devices(program: Program, llama3_100m: Exported) -> None:
    assert program.declared_devices == llama3_100m.devices == 4
    assert "divided it over 4 devices" in llama3_100m.notes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "fsdp=5"}, r"embedding = 576 cannot be divided by fsdp=5"),
        ({"mesh": "fsdp=4,tp=2"}, r"heads = 9 cannot be divided by tp=2"),
        ({"mesh": "fsdp=4,xp=2"}, "mesh axis xp divides nothing"),
        ({"mesh": "fsdp=4,pp=2"}, "that axis is pipe here"),
        ({"mesh": "4"}, "is not AXIS=SIZE"),
        ({"mesh": "fsdp=2,fsdp=2"}, "names an axis twice"),
        ({"remat": "all"}, "remat is 'all'; known: minimal_with_context, offload, full, "),
        ({"dtype": "f7"}, "dtype is 'f7'; known: bf16, f16, f32"),
        ({"layers": "0"}, "layers is '0'; give a whole number"),
        ({"scan": "maybe"}, "scan is 'maybe'; give true or false"),
        ({"layer": "2"}, "has no option 'layer'; did you mean 'layers'"),
        ({"precision": "fp8"}, "has no option 'precision'; that is product_dtype here"),
        ({"weight_dtype": "f8"}, "has no option 'weight_dtype'; that is product_dtype here"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        export_model("llama3-100m", options)


@pytest.mark.parametrize(
    ("given", "own"), [("product_dtype", "weight_dtype"), ("sequence", "context")]
)
def test_a_setting_of_training_names_that_of_inference(given: str, own: str) -> None:
    with pytest.raises(ConfigError, match=f"has no option '{given}'; that is {own} here"):
        export_model("llama3-8b-decode", {given: "1"})


def test_types_are_known_by_all_their_names() -> None:
    model = model_named("llama3-100m")
    own = model.with_options({"dtype": "bf16", "product_dtype": "f8", "state_dtype": "f32"})
    others = {"dtype": "bfloat16", "product_dtype": "FP8", "state_dtype": "float32"}
    assert model.with_options(others) == own


@pytest.mark.parametrize("remat", ["full", "none"])
def test_rematerialisation_decides_how_many_products_there_are(remat: str) -> None:
    texts = {
        name: export_model("llama3-8b", SMALL | {"remat": name}).content.count(b"dot_general")
        for name in ("minimal_with_context", remat)
    }
    computed_again = texts["full"] if remat == "full" else texts["minimal_with_context"]
    other = texts["minimal_with_context"] if remat == "full" else texts["none"]
    assert computed_again > other


def test_what_libraries_keep_leaves_no_product_to_compute_again() -> None:
    counts = {
        name: export_model("llama3-8b", SMALL | {"remat": name}).content.count(b"dot_general")
        for name in (
            *("none", "elementwise", "core_attention", "alternate_products", "full", "whole"),
        )
    }
    assert counts["elementwise"] == counts["none"]
    assert counts["none"] < counts["core_attention"] < counts["full"]
    assert counts["none"] < counts["alternate_products"] < counts["full"] < counts["whole"]


def test_a_loop_over_the_layers_has_a_known_count() -> None:
    options = SMALL | {"scan": "true", "layers": "3"}
    program = load_source(partitioned(export_model("llama3-8b", options)).content, name="scan")
    loops = [op for op in program.main.body.operations if op.kind == "while"]
    assert [getattr(op.attrs, "trip_count", None) for op in loops] == [3, 3]


@pytest.mark.parametrize("remat", ["minimal_with_context", "full"])
def test_a_loop_over_the_layers_does_the_same_arithmetic(remat: str) -> None:
    """All but that of the loops' own counters: less, add, and backwards an index, per turn.

    Norms add up stacked weights at once, in another order.
    """
    works: list[Work] = []
    for scan in ("true", "false"):
        options = SMALL | {"scan": scan, "layers": "3", "remat": remat}
        program = load_source(partitioned(export_model("llama3-8b", options)).content, name=scan)
        works.append(total(expand(program.main.body.operations, program.functions)))
    looped, unrolled = (dict(work.flops) for work in works)
    assert looped.pop("i32") - unrolled.pop("i32") == 3 * 5
    assert looped == pytest.approx(unrolled, rel=1e-6)
    assert set(looped) == {"bf16", "f32", "i1"}
    assert works[0].transcendentals == works[1].transcendentals


def test_gradients_are_accumulated_over_rounds() -> None:
    """The same arithmetic, but for the sums of gradients, in a loop over the batch."""
    works: list[Work] = []
    for rounds in ("1", "2"):
        options = SMALL | {"scan": "true", "layers": "2", "batch": "2", "accumulation": rounds}
        program = load_source(partitioned(export_model("llama3-8b", options)).content, name=rounds)
        works.append(total(expand(program.main.body.operations, program.functions)))
    whole, in_rounds = (dict(work.flops)["bf16"] for work in works)
    assert whole < in_rounds < 1.01 * whole
    with pytest.raises(ConfigError, match="a batch of 3 is not divided by accumulation = 2"):
        export_model("llama3-8b", SMALL | {"batch": "3", "accumulation": "2"})


def test_fused_attention_is_one_call_forward_and_one_backward() -> None:
    exported = export_model("llama3-8b", SMALL | {"attention": "cudnn"})
    program = load_source(partitioned(exported).content, name="llama3-8b")
    targets = [op.attrs.target for op in all_ops(program) if isinstance(op.attrs, CustomCallAttrs)]
    fused = [op for op in all_ops(program) if "cudnn" in str(op.attrs)]
    # Two layers, and nothing is computed again: what the forward pass makes is kept.
    assert Counter(target for target in targets if "cudnn" in target) == {
        "__cudnn$fmhaSoftmax": 2,
        "__cudnn$fmhaSoftmaxBackward": 2,
    }
    # The heads are divided over tp, the batch over fsdp.
    query, key = (operand.type for operand in fused[0].operands[:2])
    assert isinstance(query, TensorType)
    assert isinstance(key, TensorType)
    assert (query.shape, key.shape) == ((1, 256, 16, 128), (1, 256, 4, 128))


def test_flash_attention_is_cudnns_by_other_calls() -> None:
    def calls(attention: str) -> dict[str, tuple[Attention, ...]]:
        exported = export_model("llama3-8b", SMALL | {"attention": attention})
        program = load_source(partitioned(exported).content, name="llama3-8b")
        fused = [op for op in all_ops(program) if attentions(op)]
        return {
            str(each.is_backward): tuple(attentions(op)) for op in fused for each in attentions(op)
        }

    assert calls("flash") == calls("cudnn")


def test_fused_attention_takes_the_products_away() -> None:
    def products(attention: str) -> int:
        exported = export_model("llama3-8b", SMALL | {"attention": attention})
        program = load_source(partitioned(exported).content, name="llama3-8b")
        return sum(op.kind == "dot_general" for op in all_ops(program))

    # Of each layer: forward two, backward four, and two that are computed again.
    assert products("unfused") - products("cudnn") == 2 * 8
    assert products("flash") == products("cudnn")


def test_attention_that_nothing_settles_is_unfused() -> None:
    texts = {
        attention: export_model("llama3-8b", SMALL | {"attention": attention}).content
        for attention in ("auto", "unfused")
    }
    assert texts["auto"] == texts["unfused"] == export_model("llama3-8b", SMALL).content


def test_attention_is_one_of_a_few() -> None:
    with pytest.raises(ConfigError, match="attention is 'flashed'"):
        export_model("llama3-8b", SMALL | {"attention": "flashed"})


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
    ],
)
def test_parameters_are_those_of_the_published_weights(name: str, parameters: int) -> None:
    state = model_named(name).step({"scan": "true"}).arguments[0]
    assert sum(prod(leaf.shape) for leaf in jax.tree.leaves(state["weights"])) == parameters
    assert f"{parameters / 1e9:.3f} B" in model_named(name).summary


COUNTERS = 3 * 4
"""The bytes of AdamW's three counters of steps."""


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("llama2-7b", 6_738_415_616),
        ("llama2-70b", 68_976_648_192),
    ],
)
@pytest.mark.parametrize(("given", "size"), [({}, 4), ({"state_dtype": "bf16"}, 2)], ids=str)
def test_a_device_holds_its_part_of_weights_and_two_moments(
    name: str, parameters: int, given: dict[str, str], size: int
) -> None:
    """Weights and two moments: 12 bytes a parameter in f32, as MaxText and Megatron-LM, or 6.

    Parameters are those of the published weights; norms may be whole on every device.
    """
    devices = 16
    step = model_named(name).step({"scan": "true", "mesh": f"fsdp={devices}", **given})
    norms = (2 * 126 + 1) * 16384
    held = step.argument_bytes(0) - COUNTERS
    assert 0 <= held - 3 * size * parameters / devices <= 3 * size * norms


@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("bf16", 2)])
def test_a_partitioned_step_takes_states_of_the_type_asked_for(dtype: str, size: int) -> None:
    """The partitioner's own argument sizes: states, and five arrays of tokens that are read."""
    settings = SMALL | {"state_dtype": dtype}
    step = model_named("llama3-8b").step(settings)
    weights = jax.tree.leaves(step.arguments[0]["weights"])
    elements = sum(prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in weights)
    program = load_source(partitioned(export_model("llama3-8b", settings)).content, name=dtype)
    held = sum(size_bytes(value.type) for value in program.main.body.arguments)
    assert held == 3 * size * elements + COUNTERS + 5 * 256 * 4


def test_a_loop_in_one_of_as_many_turns_has_a_dimension_of_its_own() -> None:
    # Granite's nine layers of a turn are five Mamba layers, one of attention, and four Mamba ones;
    # there are four turns.
    step = model_named("ibm-granite/granite-4.0-h-tiny").step({"scan": "true", "mesh": "fsdp=8"})
    before, attention, behind = step.arguments[0]["weights"]["layers"]
    leading = [leaf["mlp_norm"].shape[:-1] for leaf in (before[0], attention, behind[0])]
    assert leading == [(4, 5), (4,), (4, 4)]
