"""Model FLOPs by hand, and against the products of the programs that the models make."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.models.flops import model_flops
from hespas.program.program import nested_ops
from hespas.program.rewrite import with_calls_opened
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.work.expand import expand, total

PRODUCTS = {"dot", "dot_general", "convolution"}


def needed(name: str, **options: str) -> float:
    flops = model_flops(model_named(name).with_options(options))
    assert flops is not None
    return flops


def executed(name: str, *, within: str = "", **options: str) -> int:
    """Return the FLOPs of a device's products, of those whose name stack holds ``within``."""
    program = load_source(partitioned(export_model(name, options)).content, name=name)
    every = nested_ops(with_calls_opened(program).body)
    ops = [op for op in every if op.kind in PRODUCTS and within in op.scope]
    assert ops
    return sum(count for _, count in total(expand(ops)).flops)


def test_a_decoders_are_those_of_its_weights_and_of_attention() -> None:
    # By hand: one layer's weights, and attention among 4096 tokens.
    layer = 4 * 576 * 9 * 128 + 3 * 576 * 2016
    weights = 7 * layer + 576 * 128256
    tokens = 4 * 4096
    assert needed("llama3-100m") == tokens * (6 * weights + 12 * 7 * 9 * 128 * 4096)


@pytest.mark.parametrize(
    ("name", "published"),
    # G. multiply-adds for an image of 224 x 224: K. He et al., Deep Residual Learning for Image
    # Recognition, 2015, table 1, with those of padding.
    [("resnet18-inference", 1.8e9), ("resnet34-inference", 3.6e9), ("resnet101-inference", 7.6e9)],
)
def test_a_residual_networks_are_as_published(name: str, published: float) -> None:
    images = 4 * 256
    assert needed(name) / 2 / images == pytest.approx(published, rel=0.09)


@pytest.mark.parametrize("name", ["resnet18-inference", "resnet18", "resnet50"])
def test_a_residual_networks_are_those_of_its_program(name: str) -> None:
    options = {"mesh": "data=1", "batch": "2"}
    assert needed(name, **options) == pytest.approx(executed(name, **options), rel=0.03)


@pytest.mark.parametrize("name", ["moe", "moe-training"])
def test_those_of_experts_are_the_products_of_the_chosen(name: str) -> None:
    # Without spare places, experts compute as many rows as tokens choose them.
    options = {
        "mesh": "expert=4",
        "experts": "4",
        "embedding": "64",
        "mlp": "96",
        "sequence": "128",
        "capacity_percent": "100",
    }
    done = 4 * sum(executed(name, within=part, **options) for part in ("router", "experts/"))
    assert needed(name, **options) == pytest.approx(done, rel=0.03)


def test_a_product_has_two_for_each_of_its_terms() -> None:
    assert needed("gemm-contracting", m="8", k="16", n="4") == 2 * 8 * 16 * 4
    assert model_flops(None) is None


def test_a_new_token_sees_those_before_it_in_its_chunk() -> None:
    scout = "meta-llama/Llama-4-Scout-17B-16E-Instruct:decode"
    of_context = [needed(scout, context=tokens) for tokens in ("8200", "8192", "16384")]
    assert of_context == sorted(set(of_context))
