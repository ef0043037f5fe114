"""The FLOPs that a model needs for a step, whatever is executed: for model FLOPs utilisation."""

from __future__ import annotations

from hespas.models.catalogue import Llama2, Llama3


def model_flops(settings: object, tokens: int | None) -> float | None:
    """Return the FLOPs of a training step of a decoder; None for other models.

    ``6 N + 12 L H Q T`` for each token: forward and backward products with N weights, and attention
    among T tokens in L layers of H heads of Q, masked or not; recomputation doesn't count. N is
    without the embedding of the input, which is looked up. Source: A. Chowdhery et al., PaLM:
    Scaling Language Modeling with Pathways, 2022, appendix B.

    >>> from hespas.models.catalogue import model_named
    >>> settings = model_named("llama3-8b").settings
    >>> round(model_flops(settings, 1) / 1e9, 1)
    51.5
    """
    if tokens is None or not isinstance(settings, Llama2 | Llama3):
        return None
    sizes = settings.sizes
    width, head = sizes["embedding"], sizes["head_size"]
    attention = 2 * width * head * (sizes["heads"] + sizes["kv_heads"])
    layer = attention + 3 * width * sizes["mlp"]
    weights = sizes["layers"] * layer + width * sizes["vocabulary"]
    mixing = 12 * sizes["layers"] * sizes["heads"] * head * sizes["sequence"]
    return float(tokens * (6 * weights + mixing))
