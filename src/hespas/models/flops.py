"""The FLOPs that a model needs, for model FLOPs utilisation.

They are those of its products, convolutions included; recomputation, padding and what only moves
data don't count.
"""

from __future__ import annotations

from collections import Counter

from hespas.models.architecture import Latent, LayerKind
from hespas.models.catalogue import Experts, Gemm
from hespas.models.language import LanguageModel
from hespas.models.network_model import Learning, Network
from hespas.models.parameters import layer_products
from hespas.models.resnet_layers import FIRST, ResNet
from hespas.models.runs import Decode, Prefill, Training, has_head
from hespas.models.weights import state_elements


def model_flops(settings: object) -> float | None:
    """Return a step's FLOPs over all devices.

    Returns None for other settings.

    >>> from hespas.models.catalogue import model_named
    >>> settings = model_named("llama3-8b").settings
    >>> tokens = settings.batch * settings.parts * settings.sequence
    >>> round(model_flops(settings) / tokens / 1e9, 1)
    51.5
    """
    match settings:
        case LanguageModel():
            return float(settings.batch * settings.parts * _language(settings))
        case Network(run=run):
            times = 3 if isinstance(run, Learning) else 1
            return float(settings.batch * settings.parts * times * settings.flops)
        case Experts():
            return float(settings.batch * settings.parts * settings.sequence * _experts(settings))
        case ResNet():
            return float(settings.batch * settings.parts * _resnet(settings))
        case Gemm():
            return 2.0 * settings.m * settings.k * settings.n
        case _:
            return None


def _language(settings: LanguageModel) -> int:
    """Return a sequence's FLOPs: 2 per weight, and attention's.

    Training has three times those of its forward pass, and twice those of frozen weights, which
    have no gradients. Attention has ``2 H (Q + V)`` for each token and each of those that it is
    among, masked or not: all of the context, or a layer's window; H are heads, Q and V the lengths
    of a query and a value. Each token of training has logits, and each new one of a decode step; of
    a prompt the last has. So training of a plain decoder has ``6 N + 12 L H Q T`` for each of T
    tokens in L layers, with N weights but those of the embedding of the input. Source:
    A. Chowdhery et al., PaLM: Scaling Language Modeling with Pathways, 2022, appendix B.
    """
    run, sizes, tokens = settings.run, settings.sizes_of_layers, settings.sequence
    kinds = Counter((*settings.kinds, *settings.mtp_kinds)).items()
    layers = sum(
        count * (layer_flops(settings, kind) + _mixing(settings, kind)) for kind, count in kinds
    )
    layers += 2 * sizes.embedding * sizes.layers * settings.style.layer_input
    further = len(settings.mtp_kinds)
    layers += further * 2 * sizes.embedding * 2 * sizes.embedding
    logits = 2 * sizes.embedding * sizes.vocabulary
    with_logits = 1 if isinstance(run, Prefill) else tokens * (1 + further)
    if not has_head(run):
        with_logits = 0
    forward = tokens * layers + with_logits * logits
    if not isinstance(run, Training):
        return forward
    if not settings.lora_modules:
        return 3 * forward
    trained = sum(
        count
        * (
            2 * layer_products(settings, kind, of_adapters_alone=True)
            + _state_flops(settings, kind)
            + _mixing(settings, kind)
        )
        for kind, count in kinds
    )
    return 2 * forward + tokens * trained


def mixing_flops(settings: LanguageModel) -> int:
    """Return a sequence's FLOPs of attention among tokens, all unmasked."""
    kinds = Counter((*settings.kinds, *settings.mtp_kinds)).items()
    forward = settings.sequence * sum(count * _mixing(settings, kind) for kind, count in kinds)
    return 3 * forward if isinstance(settings.run, Training) else forward


def _mixing(settings: LanguageModel, kind: LayerKind) -> int:
    """Return a token's forward FLOPs of attention in a layer."""
    if kind.mixer != "attention":
        return 0
    limits = (settings.context, kind.window, _of_chunk(settings, kind))
    seen = min(tokens for tokens in limits if tokens)
    latent = settings.latent
    index = 0 if latent is None else _index_flops(latent)
    if latent is None or not settings.selects_tokens:
        unrated = 0 if settings.masks_tokens else index
        return (attention_flops(settings, kind) - unrated) * seen
    chosen = 2 * settings.sizes_of_layers.heads * (2 * latent.kv_rank + latent.rope_size)
    return chosen * min(latent.indexed_tokens, seen) + index * seen


def _of_chunk(settings: LanguageModel, kind: LayerKind) -> int:
    """Return the tokens of a chunk that a token sees; a new one those before it in its chunk."""
    if kind.chunk and isinstance(settings.run, Decode):
        return (settings.context - 1) % kind.chunk + 1
    return kind.chunk


def layer_flops(settings: LanguageModel, kind: LayerKind) -> int:
    """Return a token's FLOPs in a layer, without attention.

    States are changed by each token, and a token is multiplied by them.
    """
    return 2 * layer_products(settings, kind) + _state_flops(settings, kind)


def _state_flops(settings: LanguageModel, kind: LayerKind) -> int:
    return (6 if kind.mixer == "delta" else 4) * state_elements(settings, kind)


def attention_flops(settings: LanguageModel, kind: LayerKind) -> int:
    """Return attention's FLOPs per pair of tokens, index included."""
    latent = settings.latent
    query, value = settings.head_sizes
    if kind.head_size:
        query = value = kind.head_size
    if latent is not None and isinstance(settings.run, Decode):
        # The vectors themselves are keys and values.
        query, value = latent.kv_rank + latent.rope_size, latent.kv_rank
    index = _index_flops(latent) if latent is not None else 0
    return 2 * settings.sizes_of_layers.heads * (query + value) + index


def _index_flops(latent: Latent) -> int:
    return 2 * latent.index_heads * (latent.index_size + 1)


def _experts(settings: Experts) -> int:
    """Return a token's FLOPs of the router and chosen experts.

    Backward there is a product for the gradient of each weight, and one for what goes into the
    last of an expert's three; the layer alone has no gradient of its input.
    """
    router = 2 * settings.embedding * settings.experts
    matrix = 2 * settings.chosen * settings.embedding * settings.mlp
    if not settings.train:
        return router + 3 * matrix
    return 2 * router + (3 + 3 + 1) * matrix


def _resnet(settings: ResNet) -> int:
    """Return the FLOPs of one image.

    A convolution has 2 for each pair of channels and each pixel that a window reads, padding left
    out; backward it has as many for the gradient of the kernel, and for that of its input, which
    the first has not.
    """
    read = settings.pixels_read
    by_layer = {
        layer.name: 2 * layer.inputs * layer.outputs * read[layer.name] ** 2
        for layer in settings.convolutions
    }
    forward = sum(by_layer.values()) + 2 * settings.features * settings.classes
    return 3 * forward - by_layer[FIRST.name] if settings.train else forward
