"""Figures of models: parameters, FLOPs and bytes of a token against closed forms."""

from __future__ import annotations

from hespas.hardware.presets import load_device
from hespas.models.catalogue import model_named
from hespas.models.configured import configuration_of
from hespas.models.figures import TRAINED_BYTES, USABLE, ModelFigures, model_figures, zoo_figures


def figures(name: str) -> ModelFigures:
    configuration = configuration_of(name)
    assert configuration is not None
    return model_figures(configuration, name=name)


def test_flops_are_twice_the_weights_but_the_embedding() -> None:
    made = figures("meta-llama/Meta-Llama-3-8B")
    embedding, norms = 128256 * 4096, 65 * 4096
    assert made.flops_per_token == 2 * (made.parameters - embedding - norms)


def test_attention_has_two_products_of_each_head() -> None:
    made = figures("meta-llama/Meta-Llama-3-8B")
    assert made.attention_flops_per_token == 32 * 4 * 32 * 128


def test_latent_attention_caches_one_vector_for_all_heads() -> None:
    assert figures("deepseek-ai/DeepSeek-V3").kv_bytes_per_token == 61 * (512 + 64) * 2


def test_layers_without_attention_cache_states() -> None:
    made = figures("nvidia/Nemotron-H-8B-Base-8K")
    assert made.kv_bytes_per_token == 4 * 2 * 8 * 128 * 2
    assert made.state_bytes_per_sequence == 24 * 128 * 64 * 128 * 4


def test_the_smallest_cluster_holds_the_states_and_half_of_it_does_not() -> None:
    made = figures("meta-llama/Meta-Llama-3-8B")
    states = made.parameters * TRAINED_BYTES
    capacity = load_device("H100_80GB").memory_capacity_bytes
    assert capacity is not None
    devices = int(made.smallest_cluster["training"]["H100_80GB"].partition("x")[0])
    assert devices * capacity * USABLE >= states
    # Half as many would have less than the working set of a sequence left.
    assert devices / 2 * (capacity * USABLE - 4096 * 128256 * 10) < states


def test_experts_are_divided_and_never_gathered() -> None:
    """Two layers of experts of Kimi K2 would fill a device of 80 GB."""
    kimi = figures("moonshotai/Kimi-K2-Instruct")
    assert kimi.smallest_cluster["training"]["H100_80GB"] == "256xH100_80GB"


def test_a_part_that_holds_no_sequence_has_no_cluster() -> None:
    made = figures("meta-llama/Llama-3.1-405B")
    assert made.smallest_cluster["training"]["TPUv6e"] == ""


def test_a_model_of_the_zoo_has_the_figures_of_the_published_one() -> None:
    zoo = zoo_figures(model_named("llama3-8b").settings, name="llama3-8b")
    assert zoo.parameters == figures("meta-llama/Meta-Llama-3-8B").parameters
    assert zoo.kv_bytes_per_token == figures("meta-llama/Meta-Llama-3-8B").kv_bytes_per_token
