"""Values that describe a decoder: sizes, style, experts, mixers, layers.

A reader of configurations or a family makes these values; a `hespas.models.language.LanguageModel`
holds them.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from hespas.base.frozen import frozen


@frozen
class Sizes:
    """A decoder's sizes; ``mlp`` is its dense layers' inner width.

    With ``kv_heads`` 0 there are as many heads of keys and values as of queries. Positions are
    rotary, with periods up to ``rope_theta``, unless that is 0.
    """

    embedding: int
    heads: int
    kv_heads: int
    layers: int
    mlp: int
    vocabulary: int
    head_size: int = 128
    rope_theta: int = 10000


@frozen
class RotaryScaling:
    """How rotary positions reach beyond ``original`` tokens.

    ``kind`` is Hugging Face's name. Periods are ``factor`` times as long: all of them (linear), or
    those that turn fewer than ``slow`` times in the original tokens, with a ramp up to those that
    turn ``fast`` times (llama3, yarn). What turns is multiplied by ``amplitude``. Sources: A.
    Grattafiori et al., The Llama 3 Herd of Models, 2024; B. Peng et al., YaRN, 2023, sections 3.2
    to 3.4.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original: int = 4096
    slow: float = 1.0
    fast: float = 32.0
    amplitude: float = 1.0
    is_truncated: bool = True


Activation = Literal["silu", "gelu", "exact_gelu", "relu", "relu_squared", "clipped_silu"]


@frozen
class Style:
    """The style of a decoder, alike in all its layers.

    ``gated`` layers multiply the activation by a second product. Positions are learned for
    ``learned_positions`` tokens, slopes of scores (``alibi``), or rotary, of the first
    ``rotary_size`` numbers of a head, all where that is 0. Where attention is not ``before_mlp``
    both take the same rows, with the same norm or one each. ``score_cap`` and ``logit_cap`` bound
    scores and logits by a hyperbolic tangent, 0 for none. Queries are multiplied by
    ``query_scale``, or where that is 0 by the inverse root of their length. With ``sinks`` each
    head has a score of its own in the sum of exponentials; with an ``output_gate`` a second product
    of the row multiplies what attention makes. Each layer has an input of ``layer_input`` numbers
    of its own, from a table of ``input_vocabulary`` tokens and a product of the first layer's
    input, unless that is 0. Tokens of training are looked up by a product with a ``one_hot``
    matrix. Norms without ``norm_weights`` multiply nothing; ``norms_embedding`` adds one before the
    first layer. Queries, keys and values are cut off at ``clip``, unless that is 0. Norms of heads
    come after rotation where both are asked for; after it alone, they have no weights. Batches may
    have several ``documents`` in a sequence, which unfused attention keeps apart, in the type that
    is computed in, dividing by sums of exponentials behind its products, as MaxText does.
    """

    IS_FIXED: ClassVar[bool] = True
    """Not for options of models: what it says makes a family."""

    norm: Literal["rms", "layer"] = "rms"
    norm_biases: bool = True
    norm_weights: bool = True
    norms_embedding: bool = False
    epsilon: float = 1e-5
    norms_before: bool = True
    before_mlp: Literal["yes", "same_norm", "own_norm"] = "yes"
    norms_after: bool = False
    norms_of_heads: bool = False
    norms_of_rows: bool = False
    norms_of_values: bool = False
    norms_after_rotation: bool = False
    scales_layers: bool = False
    activation: Activation = "silu"
    gated: bool = True
    attention_biases: Literal["none", "inputs", "all"] = "none"
    mlp_biases: bool = False
    head_biases: bool = False
    clip: float = 0.0
    tied: bool = False
    learned_positions: int = 0
    alibi: bool = False
    rotary_size: int = 0
    rotary_scaling: RotaryScaling | None = None
    score_cap: float = 0.0
    logit_cap: float = 0.0
    query_scale: float = 0.0
    one_hot: bool = False
    documents: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    sinks: bool = False
    output_gate: bool = False
    eager: bool = False
    eager_experts: bool = False
    eager_rotation: bool = False
    layer_input: int = 0
    input_vocabulary: int = 0


@frozen
class RoutingStyle:
    """What a router is put together from.

    ``corrected`` routers choose by scores with a bias that is not trained. Weights of the chosen
    experts sum to 1 where they are ``normalised``, times ``scale``. A token is multiplied by its
    weight before the expert where ``scales_inputs``. ``beside_dense`` experts stand beside the
    dense layer, with norms of their own.
    """

    IS_FIXED: ClassVar[bool] = True

    corrected: bool = False
    normalised: bool = True
    scale: float = 1.0
    logit_biases: bool = False
    biases: bool = False
    shared_gate: bool = False
    scales_inputs: bool = False
    beside_dense: bool = False


@frozen
class Routing:
    """Layers of ``experts``; a router chooses for each token.

    The first ``dense_layers`` have none. An expert takes ``capacity_percent`` of the tokens that it
    would get from each device if all were chosen equally often, and drops others; at 100 the work
    is that of a router that spreads tokens evenly and drops none. ``dropless`` products have as
    many rows as tokens choose them. ``shared_experts`` take all tokens, as one layer of their
    widths, or of ``shared_mlp`` where that is given; with a ``shared_gate`` a product of the row
    multiplies it. Experts of ``latent_size`` are sent shorter rows. Experts stand in
    ``expert_groups``, neighbours along the axis ``expert``; a token chooses ``chosen_groups`` of
    them, as many experts in each, and is sent once to each. With ``exchange_dtype`` f8 tokens go to
    experts in 8 bits, and so do gradients of what comes back. The ``dispatcher`` sorts what arrived
    by expert in the kernel that exchanges it (fused), or in a kernel behind an all-to-all, and in
    one before the way back. ``expert_axes`` names the axes of the mesh that divide the experts;
    those on ``tp`` are whole, and have its devices' share of the tokens in training; in inference,
    where all have all tokens, what the devices make is summed.
    """

    experts: int
    chosen: int
    expert_mlp: int
    shared_experts: int = 0
    dense_layers: int = 0
    capacity_percent: int = 100
    dropless: bool = False
    gate: Literal["softmax", "sigmoid"] = "softmax"
    expert_groups: int = 1
    chosen_groups: int = 1
    exchange_dtype: str = "same"
    dispatcher: Literal["fused", "alltoall"] = "fused"
    expert_axes: str = "expert"
    shared_mlp: int = 0
    latent_size: int = 0
    style: RoutingStyle = RoutingStyle()

    @property
    def shared_width(self) -> int:
        """The inner width of the shared experts."""
        return self.shared_mlp or self.shared_experts * self.expert_mlp

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that divide the experts, major first."""
        return tuple(self.expert_axes.split("+"))


@frozen
class Latent:
    """Attention whose keys and values come from one ``kv_rank`` vector.

    Heads have ``head_size`` without positions and ``rope_size`` with them, which all heads share in
    keys; queries are made of vectors of ``query_rank``, or of rows where that is 0. A query sees
    the ``indexed_tokens`` that ``index_heads`` of ``index_size`` rate highest; all where that is 0.
    Sources: DeepSeek-AI, DeepSeek-V2, 2024, section 2.1, and DeepSeek-V3.2, 2025, section 2.1.
    """

    query_rank: int
    kv_rank: int
    rope_size: int
    value_size: int
    indexed_tokens: int = 0
    index_heads: int = 0
    index_size: int = 0


@frozen
class StateSpace:
    """A mixer with states that decay and take in tokens.

    Source: T. Dao and A. Gu, Transformers are SSMs (Mamba-2), 2024, section 7.
    """

    state_heads: int
    state_head_size: int
    state_size: int
    state_groups: int = 1
    convolution: int = 4
    chunk: int = 128
    convolution_biases: bool = True


@frozen
class Delta:
    """A mixer whose states correct a token's predicted value.

    Source: S. Yang, J. Kautz and A. Hatamizadeh, Gated Delta Networks, 2024, section 3.
    """

    delta_key_heads: int
    delta_heads: int
    delta_key_size: int
    delta_value_size: int
    convolution: int = 4
    chunk: int = 64


Mixer = Literal["attention", "state_space", "delta", "none"]


@frozen
class LayerKind:
    """What layers of a model differ in.

    A layer sees the last ``window`` tokens, those of its own ``chunk``, or all where both are 0.
    Sizes that are 0 are the model's. A layer that does not ``feed_forward`` has a mixer alone.
    Rotary positions turn by ``rope_theta``, the model's where it is 0. Layers with ``shared`` keys
    take keys and values of the last layer before them that has ``kept`` ones and the same window.
    """

    window: int = 0
    is_routed: bool = False
    mixer: Mixer = "attention"
    feeds_forward: bool = True
    chunk: int = 0
    rotates: bool = True
    rotary_size: int = 0
    rope_theta: float = 0
    head_size: int = 0
    kv_heads: int = 0
    mlp: int = 0
    value_is_key: bool = False
    keys: Literal["own", "kept", "shared"] = "own"
