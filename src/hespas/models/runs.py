"""How a language model runs: training, prompts, or new tokens."""

from __future__ import annotations

from hespas.base.frozen import frozen
from hespas.models.model import MODULES, MeshAxes


@frozen
class Training:
    """A training step; ``batch`` counts sequences per data-parallel part.

    They are computed in ``accumulation`` rounds. The optimiser's states and the weights that it
    changes are of ``state_dtype``, and cast to ``dtype`` before they are gathered. In pipelines
    gradients are summed in ``gradient_dtype``, the states' where that is ``same``. ``zero`` says
    what the axis ``data`` divides, as in S. Rajbhandari et al., ZeRO, 2020: nothing, states (1),
    gradients too (2), or weights too (3), as the axis ``fsdp`` does. With ``sequence_parallel``
    the axis ``tp`` divides what stands between its products, norms and residuals, by tokens. With
    ``product_dtype`` f8 or f4, products of layers have operands of 8 or 4 bits, forward and
    backward; those of experts with ``expert_product_dtype``. An ``eager`` step runs each operation
    of PyTorch as a kernel of its own; ``loss`` eager the loss alone, in f32; ``expert_kernels``
    eager what is between products of experts, as far as Megatron-LM has no kernel for all of it;
    ``rotary_kernels`` eager what rotates queries and keys. Products of the ``same_rows``, of
    queries, keys and values or of a gate and what it multiplies, are joined, or apart. The
    ``embedding_lookup`` reads rows of the embedding, or is a product with a one-hot matrix.
    Each of ``mtp_layers`` predicts a further token (multi-token prediction). With a ``lora_rank``
    the model's weights are frozen, in ``dtype``, and adapters of that rank are trained beside those
    of the ``lora_modules``, joined by ``+``: by default all that Megatron-Bridge adapts. Sequences
    are packed of documents of ``document_length``, which do not see each other, or one document
    where that is 0.
    """

    mesh: MeshAxes
    batch: int = 1
    accumulation: int = 1
    sequence: int = 4096
    attention: str = "auto"
    context_attention: str = "gather"
    remat: str = "minimal_with_context"
    scan: bool = False
    dtype: str = "bf16"
    state_dtype: str = "f32"
    gradient_dtype: str = "same"
    zero: int = 0
    sequence_parallel: bool = False
    product_dtype: str = "same"
    expert_product_dtype: str = "same"
    eager: bool = False
    loss: str = "fused"
    expert_kernels: str = "fused"
    rotary_kernels: str = "fused"
    same_rows: str = "auto"
    embedding_lookup: str = "auto"
    mtp_layers: int = 0
    lora_rank: int = 0
    lora_modules: str = "all"
    document_length: int = 0

    @property
    def recomputed(self) -> frozenset[str]:
        """The modules that the backward pass runs again."""
        if self.remat == "core_attention":
            return frozenset({"core_attn"})
        return frozenset(self.remat.split("+")).intersection(MODULES)


@frozen
class Inference:
    """What prompts and new tokens have in common.

    ``batch`` counts sequences for one data-parallel part of the mesh. The cache is in pages of
    ``page_size`` tokens, or contiguous where that is 0. Weights of products are of
    ``weight_dtype``, those of mixers and of experts of types of their own unless these are
    ``same``. Rows are rounded to 4 bits where they meet weights in NVFP4, on parts that multiply
    such numbers (``activation_dtype`` auto), always (nvfp4) or never (same). One ``stage`` of a
    pipeline has as many layers as it says, of the model's from ``first_layer`` on, the first with
    the embedding and the last with the head.
    """

    mesh: MeshAxes
    batch: int = 1
    attention: str = "auto"
    cache_dtype: str = "bf16"
    page_size: int = 0
    dtype: str = "bf16"
    weight_dtype: str = "bf16"
    attention_dtype: str = "same"
    expert_dtype: str = "same"
    activation_dtype: str = "auto"
    stage: str = "whole"
    first_layer: int = 0


@frozen
class Prefill(Inference):
    """A step that takes in prompts of ``sequence`` tokens and makes one token."""

    sequence: int = 2048


@frozen
class Decode(Inference):
    """A step of ``new_tokens`` a sequence; ``context`` includes them.

    More than one new token are computed at once, as when guessed ones are verified.
    """

    context: int = 2048
    new_tokens: int = 1


Run = Training | Prefill | Decode


def has_embedding(run: Training | Inference) -> bool:
    """Return whether a step has the embedding."""
    return isinstance(run, Training) or run.stage in {"whole", "first"}


def has_head(run: Training | Inference) -> bool:
    """Return whether a step has the head."""
    return isinstance(run, Training) or run.stage in {"whole", "last"}
