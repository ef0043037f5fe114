"""The settings of a language model: its sizes, what it is put together from, and how it is run.

A model of the zoo is a `LanguageModel`; a module of `hespas.models.families` lists those of a
family. Its steps are made by `hespas.models.training` and `hespas.models.serving`. Importing this
does not import JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import cycle, islice
from typing import ClassVar, Literal

from hespas.errors import ConfigError
from hespas.models.kernels import FUSED
from hespas.models.model import MeshAxes, check_division, check_heads, check_tokens
from hespas.models.plan import Plan, plan_of
from hespas.models.precision import PARTS, SCALED, Precision

SELECTING = 128
"""Queries whose tokens are chosen at a time in long sequences: their scores fit in memory."""
_MOST_MTP_LAYERS = 17
MTP_NOTE = "heads that predict further tokens are left out (mtp_layers=1 trains one)"
_LARGEST_HEAD = 256
"""Of the fused kernels for GPUs. Source: NVIDIA, cuDNN frontend, "Scaled Dot Product Attention"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a decoder is; ``mlp`` is the inner width of its dense layers.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How rotary positions reach beyond ``original`` tokens, by the name of Hugging Face.

    Periods are ``factor`` times as long: all of them (linear), or those that turn fewer than
    ``slow`` times in the original tokens, with a ramp up to those that turn ``fast`` times (llama3,
    yarn). What turns is multiplied by ``amplitude``. Sources: A. Grattafiori et al., The Llama 3
    Herd of Models, 2024; B. Peng et al., YaRN, 2023, sections 3.2 to 3.4.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original: int = 4096
    slow: float = 1.0
    fast: float = 32.0
    amplitude: float = 1.0
    is_truncated: bool = True


Activation = Literal["silu", "gelu", "exact_gelu", "relu", "relu_squared", "clipped_silu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What a decoder is put together from, alike in all its layers.

    ``gated`` layers multiply the activation by a second product. Positions are learned for
    ``learned_positions`` tokens, slopes of scores (``alibi``), or rotary, of the first
    ``rotary_size`` numbers of a head, all where that is 0. Where attention is not ``before_mlp``
    both take the same rows, with the same norm or one each. Of each ``global_every`` layers the
    last sees all earlier tokens, the others the last ``window``. ``score_cap`` and ``logit_cap``
    bound scores and logits by a hyperbolic tangent, 0 for none. Queries are multiplied by
    ``query_scale``, or where that is 0 by the inverse root of their length. With ``sinks`` each
    head has a score of its own in the sum of exponentials; with an ``output_gate`` a second product
    of the row multiplies what attention makes. Each layer has an input of ``layer_input`` numbers
    of its own, from a table of ``input_vocabulary`` tokens and a product of the first layer's
    input, unless that is 0. Tokens of training are looked up by a product with a
    ``one_hot`` matrix. Its batches may have several ``documents`` in a sequence, which unfused
    attention keeps apart, in the type that is computed in, dividing by sums of exponentials behind
    its products, as MaxText does.
    """

    IS_FIXED: ClassVar[bool] = True
    """Not for options of models: what it says makes a family."""

    norm: Literal["rms", "layer"] = "rms"
    norm_biases: bool = True
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
    tied: bool = False
    learned_positions: int = 0
    alibi: bool = False
    rotary_size: int = 0
    rotary_scaling: RotaryScaling | None = None
    window: int = 0
    global_every: int = 1
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
    layer_input: int = 0
    input_vocabulary: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Layers of ``experts``, of which each token chooses some; the first layers are dense.

    An expert takes ``capacity_percent`` of the tokens that it would get from each device if all
    were chosen equally often, and drops others; at 100 the work is that of a router that spreads
    tokens evenly and drops none. ``dropless`` products have as many rows as tokens choose them.
    ``shared_experts`` take all tokens, as one layer of their widths, or of ``shared_mlp`` where
    that is given; with a ``shared_gate`` a product of the row multiplies it. Experts of
    ``latent_size`` are sent shorter rows. Experts stand in ``expert_groups``, neighbours along the
    axis ``expert``; a token chooses ``chosen_groups`` of them, as many experts in each, and is sent
    once to each. With ``exchange_dtype`` f8 tokens go to experts in 8 bits, and so do gradients of
    what comes back.
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
    shared_mlp: int = 0
    latent_size: int = 0
    style: RoutingStyle = RoutingStyle()

    @property
    def shared_width(self) -> int:
        """The width of what all tokens go through beside the experts."""
        return self.shared_mlp or self.shared_experts * self.expert_mlp

    def check(self, devices: int) -> None:
        """Raise `ConfigError` for what does not fit, with experts divided over ``devices``."""
        if self.dropless and devices > 1:
            raise ConfigError(
                "dropless products do not send tokens to experts of other devices",
                hint="drop the axis expert, or dropless: at capacity_percent 100 the work is that "
                "of tokens spread evenly",
            )
        if self.chosen > self.experts:
            raise ConfigError(
                f"chosen = {self.chosen} of experts = {self.experts}", hint="choose fewer"
            )
        if self.exchange_dtype != "same" and devices == 1:
            raise ConfigError(
                f"exchange_dtype = {self.exchange_dtype} has no effect: tokens go to no other "
                "devices",
                hint="drop it, or give the mesh an axis expert",
            )
        self._check_groups(devices)

    def _check_groups(self, devices: int) -> None:
        groups, chosen = self.expert_groups, self.chosen_groups
        if chosen > groups:
            raise ConfigError(
                f"chosen_groups = {chosen} of expert_groups = {groups}", hint="choose fewer"
            )
        if groups == 1:
            return
        if self.dropless:
            raise ConfigError("dropless products know no groups of experts", hint="drop one")
        for what, number in (("experts", self.experts), ("devices along expert", devices)):
            if number % groups and number > 1:
                raise ConfigError(
                    f"{number} {what} are not divided by expert_groups = {groups}",
                    hint="give a number that divides them",
                )
        if self.chosen % chosen:
            raise ConfigError(
                f"chosen = {self.chosen} is not divided by chosen_groups = {chosen}",
                hint="give a number that divides it",
            )
        if self.chosen // chosen > self.experts // groups:
            raise ConfigError(
                f"{self.chosen // chosen} experts are chosen in each group, which has "
                f"{self.experts // groups}",
                hint="give fewer expert_groups, or more chosen_groups",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Attention whose keys and values are made from a vector of ``kv_rank`` for each token.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """A mixer without attention: each head has a state that decays and takes in each token.

    Source: T. Dao and A. Gu, Transformers are SSMs (Mamba-2), 2024, section 7.
    """

    state_heads: int
    state_head_size: int
    state_size: int
    state_groups: int = 1
    convolution: int = 4
    chunk: int = 128
    convolution_biases: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A mixer without attention whose states change by how far they miss a token's value.

    Source: S. Yang, J. Kautz and A. Hatamizadeh, Gated Delta Networks, 2024, section 3.
    """

    delta_key_heads: int
    delta_heads: int
    delta_key_size: int
    delta_value_size: int
    convolution: int = 4
    chunk: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training step; ``batch`` counts sequences for one data-parallel part of the mesh.

    They are computed in ``accumulation`` rounds. The optimiser's states and the weights that it
    changes are of ``state_dtype``, and cast to ``dtype`` before they are gathered. ``zero`` says
    what the axis ``data`` divides, as in S. Rajbhandari et al., ZeRO, 2020: nothing, states (1),
    gradients too (2), or weights too (3), as the axis ``fsdp`` does. With ``sequence_parallel``
    the axis ``tp`` divides what stands between its products, norms and residuals, by tokens. With
    ``product_dtype`` f8, products of layers have operands of 8 bits, forward and backward; those of
    experts with ``expert_product_dtype`` f8. An ``eager`` step runs each operation of PyTorch as a
    kernel of its own; ``loss`` eager the loss alone, in f32. Each of ``mtp_layers`` predicts a
    further token (multi-token prediction).
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
    zero: int = 0
    sequence_parallel: bool = False
    product_dtype: str = "same"
    expert_product_dtype: str = "same"
    eager: bool = False
    loss: str = "fused"
    mtp_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A step that takes in prompts of ``sequence`` tokens, fills the cache and makes one token.

    ``batch`` counts prompts for one data-parallel part of the mesh. The cache is in pages of
    ``page_size`` tokens, or contiguous where that is 0. Weights of products are of
    ``weight_dtype``, those of mixers and of experts of types of their own unless these are
    ``same``. Rows are rounded to 4 bits where they meet weights in NVFP4, on parts that multiply
    such numbers (``activation_dtype`` auto), always (nvfp4) or never (same).
    """

    mesh: MeshAxes
    batch: int = 1
    sequence: int = 2048
    attention: str = "auto"
    cache_dtype: str = "bf16"
    page_size: int = 0
    dtype: str = "bf16"
    weight_dtype: str = "bf16"
    attention_dtype: str = "same"
    expert_dtype: str = "same"
    activation_dtype: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """A step that makes ``new_tokens`` for each sequence, whose cache has ``context`` with them.

    ``batch`` counts sequences for one data-parallel part of the mesh. More than one new token are
    computed at once, as when guessed ones are verified. Types are as for `Prefill`.
    """

    mesh: MeshAxes
    batch: int = 1
    context: int = 2048
    new_tokens: int = 1
    attention: str = "auto"
    cache_dtype: str = "bf16"
    page_size: int = 0
    dtype: str = "bf16"
    weight_dtype: str = "bf16"
    attention_dtype: str = "same"
    expert_dtype: str = "same"
    activation_dtype: str = "auto"


Run = Training | Prefill | Decode


Mixer = Literal["attention", "state_space", "delta", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A decoder and how it is run; what its parts don't have is None.

    ``pattern`` are the kinds of its layers, in order and again from the front; without one they
    are alike but for windows and dense layers.
    """

    sizes_of_layers: Sizes
    style: Style
    run: Run
    routing: Routing | None = None
    latent: Latent | None = None
    state_space: StateSpace | None = None
    delta: Delta | None = None
    pattern: tuple[LayerKind, ...] = ()

    @property
    def module(self) -> str:
        """Where its step is built."""
        return f"hespas.models.{'training' if isinstance(self.run, Training) else 'serving'}"

    @property
    def mesh(self) -> MeshAxes:
        """The mesh that it is divided over."""
        return self.run.mesh

    @property
    def batch(self) -> int:
        """Sequences for one data-parallel part of the mesh."""
        return self.run.batch

    @property
    def sequence(self) -> int:
        """The tokens of each sequence that a step computes."""
        return self.run.new_tokens if isinstance(self.run, Decode) else self.run.sequence

    @property
    def context(self) -> int:
        """The tokens that attention is among."""
        return self.run.context if isinstance(self.run, Decode) else self.run.sequence

    @property
    def accumulation(self) -> int:
        """In how many rounds the batch is computed."""
        return self.run.accumulation if isinstance(self.run, Training) else 1

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.sizes_of_layers.layers

    @property
    def dtype(self) -> str:
        """The type that is computed in."""
        return self.run.dtype

    @property
    def state_dtype(self) -> str:
        """The type of the weights that a step holds, and in training of both moments."""
        run = self.run
        return run.state_dtype if isinstance(run, Training) else run.weight_dtype

    @property
    def precision(self) -> Precision:
        """The formats of the weights of each part."""
        run = self.run
        if isinstance(run, Training):
            return Precision(**dict.fromkeys(PARTS, run.state_dtype))
        dense = run.weight_dtype
        return Precision(
            attention=dense if run.attention_dtype == "same" else run.attention_dtype,
            dense=dense,
            experts=dense if run.expert_dtype == "same" else run.expert_dtype,
            other=run.dtype if dense in SCALED else dense,
            cache=run.cache_dtype,
        )

    @property
    def attention(self) -> str:
        """How attention is computed."""
        return self.run.attention

    @property
    def parts(self) -> int:
        """How many data-parallel parts the mesh has."""
        return self.mesh.size(*self.axes["batch"])

    @property
    def head_sizes(self) -> tuple[int, int]:
        """The length of a query or key, and of a value, of one head."""
        if self.latent is None:
            return self.sizes_of_layers.head_size, self.sizes_of_layers.head_size
        return self.sizes_of_layers.head_size + self.latent.rope_size, self.latent.value_size

    @property
    def kv_heads(self) -> int:
        """The heads of keys and values that are computed and held, on all tensor-parallel devices.

        Where a model is served by several times as many devices as it has, each head is on several
        of them, as TensorRT-LLM and vLLM have it.
        """
        return self._held_heads(self.sizes_of_layers.kv_heads or self.sizes_of_layers.heads)

    def _held_heads(self, heads: int) -> int:
        devices = self.mesh.size("tp")
        repeats = devices > heads and devices % heads == 0 and self.latent is None
        return devices if repeats and not isinstance(self.run, Training) else heads

    @property
    def merges_products(self) -> bool:
        """Whether products of the same rows are one.

        They are where weights are never changed, and in 8 bits, as Megatron-LM and Transformer
        Engine hold such weights side by side.
        """
        return not isinstance(self.run, Training) or self.run.product_dtype == "f8"

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        if self.pattern:
            return tuple(islice(cycle(self.pattern), self.layers))
        dense = self.layers if self.routing is None else self.routing.dense_layers
        return _kinds(self.layers, self.style.window, self.style.global_every, dense)

    @property
    def mtp_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the layers that predict further tokens in training, like the last layer."""
        return self.kinds[-1:] * (self.run.mtp_layers if isinstance(self.run, Training) else 0)

    @property
    def is_windowed(self) -> bool:
        """Whether layers see a part of the earlier tokens alone."""
        return any(kind.window or kind.chunk for kind in self.kinds)

    def rotation(self, kind: LayerKind) -> tuple[int, float]:
        """Return how many numbers of a head turn with positions, and their longest period's base.

        Both are 0 where none does.
        """
        sizes, style = self.sizes_of_layers, self.style
        theta = kind.rope_theta or sizes.rope_theta
        if not (kind.rotates and kind.mixer == "attention" and theta) or style.alibi:
            return 0, 0
        if self.latent is not None:
            return self.latent.rope_size, theta
        head = kind.head_size or sizes.head_size
        return kind.rotary_size or style.rotary_size or head, theta

    def attention_of(self, kind: LayerKind) -> str:
        """Return how attention of a layer is computed: fused kernels have no larger heads."""
        is_large = max(kind.head_size, self.head_sizes[0]) > _LARGEST_HEAD
        return "unfused" if is_large and self.run.attention != "splash" else self.run.attention

    @property
    def selects_tokens(self) -> bool:
        """Whether attention reads the tokens alone that an index rates highest.

        New tokens over a cache do. Prompts and training do where that is fewer FLOPs: vectors of
        ``kv_rank`` for each of the chosen tokens, against keys and values of heads for half of all.
        In shorter sequences all are multiplied, and others masked. Source: DeepSeek-AI,
        DeepSeek-V3.2, 2025, section 2.3 (masked multi-head mode for short prompts).
        """
        latent = self.latent
        if latent is None or not 0 < latent.indexed_tokens < self.context:
            return False
        if isinstance(self.run, Decode):
            return self.run.new_tokens == 1
        chosen = (2 * latent.kv_rank + latent.rope_size) * latent.indexed_tokens
        return chosen < sum(self.head_sizes) * self.sequence / 2

    @property
    def plan(self) -> Plan[LayerKind]:
        """The order of the layers, as loops need it."""
        return _plan(self.kinds)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions of arrays; the batch is that of a round, of all parts."""
        sizes = self.sizes_of_layers
        named = {
            "rounds": self.accumulation,
            "batch": self.batch * self.parts // self.accumulation,
            "sequence": self.sequence,
            "norm_sequence": self.sequence,
            "queries": self.sequence,
            "one": 1,
            "context": self.context,
            "positions": self.style.learned_positions or self.context,
            "embedding": sizes.embedding,
            "norm": sizes.embedding,
            "row": sizes.embedding,
            "heads": sizes.heads,
            "kv_heads": self.kv_heads,
            "attended_heads": sizes.heads,
            "attended_kv_heads": self.kv_heads,
            "head_size": sizes.head_size,
            "mlp": sizes.mlp,
            "two": 2,
            "heads_of_kv_head": sizes.heads // self.kv_heads + 2,
            "vocabulary": sizes.vocabulary,
            "input_vocabulary": self.style.input_vocabulary,
            "layers": sizes.layers,
            "layer_input": self.style.layer_input,
            "input_norm": self.style.layer_input,
        }
        if self.latent is not None:
            latent = self.latent
            named |= {
                "query_rank": latent.query_rank,
                "kv_rank": latent.kv_rank,
                "query_norm": latent.query_rank,
                "latent_norm": latent.kv_rank,
                "latent": latent.kv_rank + latent.rope_size,
                "query_size": sizes.head_size + latent.rope_size,
                "value_size": latent.value_size,
                "index_heads": latent.index_heads,
                "index_size": latent.index_size,
            }
        if self.routing is not None:
            routing = self.routing
            named |= {
                "experts": routing.experts,
                "choices": routing.experts,
                "expert_mlp": routing.expert_mlp,
                "shared_mlp": routing.shared_width,
                "expert_row": routing.latent_size or sizes.embedding,
            }
        for mixer in (self.state_space, self.delta):
            if mixer is not None:
                named |= {field.name: getattr(mixer, field.name) for field in fields(mixer)}
                named["earlier_rows"] = mixer.convolution - 1
        return named

    def sizes_of(self, kind: LayerKind) -> dict[str, int]:
        """Return the sizes of dimensions in which layers of a kind may differ from the model."""
        heads = self._held_heads(kind.kv_heads) if kind.kv_heads else self.kv_heads
        return {
            "head_size": kind.head_size or self.sizes_of_layers.head_size,
            "kv_heads": heads,
            "attended_kv_heads": heads,
            "heads_of_kv_head": self.sizes_of_layers.heads // heads + 2,
            "mlp": kind.mlp or self.sizes_of_layers.mlp,
        }

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide a dimension, major first.

        ``norm_sequence`` is the sequence between the products of a layer, ``queries`` and the
        attended heads those inside of attention.
        """
        experts = ("expert",) if self.routing is not None else ()
        divided: dict[str, tuple[str, ...]] = {
            "batch": ("data", *experts),
            "sequence": (),
            "heads": ("tp",),
            "kv_heads": ("tp",),
            "attended_heads": ("tp",),
            "attended_kv_heads": ("tp",),
            "mlp": ("tp",),
            "shared_mlp": ("tp",),
            "expert_mlp": ("tp",),
            "vocabulary": ("tp",),
            "input_vocabulary": ("tp",),
            "experts": experts,
            "state_heads": ("tp",),
            "delta_heads": ("tp",),
            "delta_key_heads": ("tp",),
        }
        if (
            self.state_space is not None
            and self.state_space.state_groups % self.mesh.size("tp") == 0
        ):
            divided["state_groups"] = ("tp",)
        if not isinstance(self.run, Training):
            return divided
        divided |= self.sharded(("data", "fsdp") if self.run.zero == 3 else ("fsdp",))
        return divided | {
            # fsdp divides the embedding, too: looked-up tokens come to the last axis at once.
            "batch": ("data", *experts, "fsdp"),
            "sequence": ("context", "sequence"),
            "norm_sequence": (
                "context",
                "sequence",
                *(("tp",) if self.run.sequence_parallel else ()),
            ),
            "queries": ("context",),
            "attended_heads": ("tp", "sequence"),
            "attended_kv_heads": ("tp", "sequence"),
        }

    @property
    def state_axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide a dimension of states: with ZeRO ``data`` does, too.

        Where weights are gathered along ``data``, its devices have neighbouring parts.
        """
        run = self.run
        if not isinstance(run, Training) or not run.zero:
            return self.axes
        return self.axes | self.sharded(("data", "fsdp") if run.zero == 3 else ("fsdp", "data"))

    def sharded(self, axes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Return the dimensions of weights that axes of the mesh divide, where they can.

        Of each array they divide the first: the width of the model, or the rank of latent vectors,
        which stays whole where the axes do not divide it.
        """
        divided = {"embedding": axes}
        ranks = {"layer_input": self.style.layer_input}
        if self.latent is not None:
            ranks |= {"query_rank": self.latent.query_rank, "kv_rank": self.latent.kv_rank}
        if self.routing is not None:
            ranks["expert_row"] = self.routing.latent_size
        parts = self.mesh.size(*axes)
        return divided | {name: axes for name, rank in ranks.items() if rank % parts == 0}

    def check(self) -> None:
        """Raise `ConfigError` for settings that do not fit each other."""
        run, routing = self.run, self.routing
        if routing is not None:
            routing.check(self.mesh.size("expert"))
            is_loop = isinstance(run, Training) and run.scan
            if is_loop and routing.dense_layers >= self.layers:
                raise ConfigError(
                    f"dense_layers = {routing.dense_layers} of layers = {self.layers}: no layer "
                    "has experts, and scan is a loop over those that have",
                    hint="give more layers, fewer dense_layers, or scan=false",
                )
        self._check_sizes()
        check_division(self.mesh, self.sizes, self.axes)
        why = self.why_not(run.attention) if run.attention in FUSED else ""
        if why:
            raise ConfigError(why, hint="give attention unfused")
        if not isinstance(run, Training):
            self._check_types(run)
        match run:
            case Training():
                self._check_training(run)
            case Prefill():
                _check_pages(run.page_size, run.sequence, "sequence")
            case Decode():
                _check_pages(run.page_size, run.context, "context")
                if run.new_tokens > run.context:
                    raise ConfigError(
                        f"new_tokens = {run.new_tokens} of a context of {run.context}",
                        hint="context counts the new tokens too; give more",
                    )

    def _check_sizes(self) -> None:
        heads, kv_heads = self.sizes_of_layers.heads, self.sizes_of_layers.kv_heads
        if self.latent is not None and kv_heads not in {0, heads}:
            raise ConfigError(
                f"kv_heads = {kv_heads} of heads = {heads}: latent attention makes keys and values "
                "for each head",
                hint=f"give kv_heads = {heads}",
            )
        check_heads(heads, kv_heads or heads)
        if self.batch % self.accumulation:
            raise ConfigError(
                f"a batch of {self.batch} is not divided by accumulation = {self.accumulation}",
                hint=f"choose a divisor of {self.batch}",
            )
        check_tokens("sequence", self.sequence)
        check_tokens("context", self.context)
        if 0 < self.style.learned_positions < self.context:
            raise ConfigError(
                f"there are {self.context} tokens, and {self.style.learned_positions} positions "
                "are learned",
                hint=f"give at most {self.style.learned_positions} tokens",
            )
        mixers = {kind.mixer for kind in self.kinds} & {"state_space", "delta"}
        devices = self.mesh.size("context", "sequence")
        if mixers and devices > 1:
            raise ConfigError(
                "layers without attention carry states along a sequence, which the axes context "
                f"and sequence of the mesh {self.mesh} divide",
                hint="take them out of the mesh",
            )
        if self.selects_tokens and not isinstance(self.run, Decode):
            if devices > 1:
                raise ConfigError(
                    "attention among the tokens that an index chooses is not divided along a "
                    f"sequence, as context and sequence of the mesh {self.mesh} ask for",
                    hint="take them out of the mesh",
                )
            if self.sequence % SELECTING:
                raise ConfigError(
                    f"sequence = {self.sequence}: the tokens that each query sees are chosen for "
                    f"{SELECTING} queries at a time",
                    hint=f"give a multiple of {SELECTING}",
                )
        for chunk in {kind.chunk for kind in self.kinds} - {0}:
            tokens = self.sequence if not isinstance(self.run, Decode) else 0
            if tokens > chunk and (tokens % chunk or devices > 1):
                raise ConfigError(
                    f"sequence = {tokens} is not divided into chunks of {chunk} tokens that lie on "
                    "one device",
                    hint=f"give a multiple of {chunk}, and a mesh without context",
                )

    def _check_types(self, run: Prefill | Decode) -> None:
        """Raise `ConfigError` for types of parts that it does not have."""
        if run.expert_dtype != "same" and self.routing is None:
            raise ConfigError(
                f"expert_dtype = {run.expert_dtype} has no effect: there are no experts",
                hint="drop it",
            )
        used = {self.precision.attention, self.precision.dense, self.precision.experts}
        if run.activation_dtype == "nvfp4" and "nvfp4" not in used:
            raise ConfigError(
                "activation_dtype = nvfp4 has no effect: no weights are in nvfp4",
                hint="drop it, or give weight_dtype nvfp4",
            )

    def why_not(self, kernels: str) -> str:
        """Return why kernels of `FUSED` cannot compute its attention, or nothing."""
        lacks: list[tuple[bool, str]] = []
        match kernels:
            case "flash" | "flash2" | "flash_triton":
                lacks = self._lacks_of_flash()
            case "flashmla":
                lacks = self._lacks_of_flash_mla()
            case "splash":
                lacks = [(isinstance(self.run, Decode), "has no kernel over a cache")]
            case _:
                lacks = [(bool(self.style.score_cap), "has no cap of scores")]
                if isinstance(self.run, Decode):
                    lacks += self._lacks_over_cache(self.run)
        named, devices = FUSED[kernels], self.mesh.size("context")
        if devices > 1:
            lacks += [
                (
                    self.is_windowed or bool(self.style.score_cap),
                    "has neither a window nor a cap of scores in divided sequences",
                ),
                (self.style.sinks, "has no sinks in divided sequences"),
            ]
        return next((f"{named.title} {what}" for is_so, what in lacks if is_so), "") or (
            named.why_not(dtype=self.run.dtype, sequence=self.sequence, devices=devices)
        )

    def _lacks_of_flash(self) -> list[tuple[bool, str]]:
        """Return what FlashAttention can lack, and whether this needs it.

        It takes scores with a cap, but how long it takes then is not known. Source:
        Dao-AILab/flash-attention, ``mha_fwd`` of ``csrc/flash_attn/flash_api.cpp``: heads up to
        256, in multiples of 8, values as long as keys.
        """
        query, value = self.head_sizes
        return [
            (bool(self.style.score_cap), "with a cap of scores has no price"),
            (isinstance(self.run, Decode), "over a cache has no model here; give attention cudnn"),
            (query != value, f"has values as long as keys, and these are {value} and {query}"),
            (query > 256 or query % 8 != 0, f"has no heads of {query}"),
        ]

    def _lacks_of_flash_mla(self) -> list[tuple[bool, str]]:
        """Return what FlashMLA can lack, or was not measured with, and whether this needs it."""
        run = self.run
        if not isinstance(run, Decode) or self.latent is None:
            return [(True, "is for new tokens over a cache of latent vectors")]
        return [
            (run.new_tokens > 1, f"was measured for one new token, not {run.new_tokens}"),
            (run.cache_dtype != run.dtype, f"has no price for a cache in {run.cache_dtype} here"),
            (bool(run.page_size), "has no price over pages here"),
        ]

    def _lacks_over_cache(self, run: Decode) -> list[tuple[bool, str]]:
        """Return what fused kernels over a cache can lack, and whether this needs it."""
        latent = 0 if self.latent is None else self.latent.kv_rank + self.latent.rope_size
        is_small = run.cache_dtype == "f8"
        return [
            (run.new_tokens > 1, f"has no mask for {run.new_tokens} new tokens behind others"),
            (bool(latent), f"has no heads of {latent}, as latent vectors are"),
            (
                not is_small and run.cache_dtype != run.dtype,
                f"computes in the cache's type, {run.cache_dtype}, and dtype is {run.dtype}",
            ),
            (bool(run.page_size) and is_small, "has no pages in 8 bits"),
            (bool(run.page_size) and self.is_windowed, "has no window over pages"),
            (self.style.sinks, "has no sinks over a cache"),
            (self.style.alibi, "has no slopes of scores over a cache"),
            (any(kind.chunk for kind in self.kinds), "has no chunks over a cache"),
        ]

    def _check_training(self, run: Training) -> None:
        self._check_mtp(run)
        if run.expert_product_dtype != "same" and self.routing is None:
            raise ConfigError(
                f"expert_product_dtype = {run.expert_product_dtype} has no effect: the model has "
                "no experts",
                hint="drop it",
            )
        if run.zero not in {0, 1, 2, 3}:
            raise ConfigError(f"zero is {run.zero}", hint="give 0, 1, 2 or 3")
        if run.zero and run.mesh.size("data") == 1:
            raise ConfigError(
                f"zero = {run.zero} divides over the axis data, which the mesh {run.mesh} has not",
                hint="drop it, or give the mesh an axis data",
            )
        data = run.mesh.size("data", "fsdp")
        if run.zero and self.sizes_of_layers.embedding % data:
            raise ConfigError(
                f"embedding = {self.sizes_of_layers.embedding} cannot be divided by the {data} "
                f"devices of data and fsdp, as zero = {run.zero} asks for",
                hint="choose a mesh whose data x fsdp divides it, or zero 0",
            )
        devices = run.mesh.size("context")
        rotates = run.context_attention == "ring"
        in_blocks = run.attention in FUSED or rotates
        if devices > 1 and in_blocks and run.sequence % (2 * devices):
            raise ConfigError(
                f"sequence = {run.sequence} cannot be divided by twice context={devices} of the "
                "mesh: each device has a block from the front of a sequence and one from its end",
                hint=f"choose a sequence that {2 * devices} divides",
            )
        if devices > 1 and rotates and (self.is_windowed or self.style.score_cap):
            raise ConfigError(
                "attention in a ring has neither a window nor a cap of scores",
                hint="give attention unfused and context_attention gather",
            )

    def _check_mtp(self, run: Training) -> None:
        """Raise `ConfigError` for layers that cannot predict further tokens."""
        if not 0 <= run.mtp_layers < min(run.sequence, _MOST_MTP_LAYERS):
            raise ConfigError(
                f"mtp_layers = {run.mtp_layers}", hint=f"give 0 to {_MOST_MTP_LAYERS - 1}"
            )
        if not run.mtp_layers:
            return
        last = self.kinds[-1]
        if last.mixer == "none" or not last.feeds_forward:
            raise ConfigError(
                f"mtp_layers = {run.mtp_layers}: they are like the last layer, which has a mixer "
                "or a feed-forward alone",
                hint="drop mtp_layers",
            )
        if self.style.layer_input or last.keys != "own":
            raise ConfigError(
                f"mtp_layers = {run.mtp_layers}: the last layer takes inputs or keys of others",
                hint="drop mtp_layers",
            )

    @property
    def as_run(self) -> LanguageModel:
        """The model whose style says how its operations become kernels."""
        if not isinstance(self.run, Training) or not self.run.eager:
            return self
        return replace(self, style=replace(self.style, eager=True))

    def first_like(self, begin: int, layers: int) -> int:
        """Return where as many layers of the same kinds, in their order, stand first."""
        kinds = self.kinds
        wanted = kinds[begin : begin + layers]
        return next(at for at in range(begin + 1) if kinds[at : at + layers] == wanted)

    def with_layers(self, layers: int, *, first: int = 0) -> LanguageModel:
        """Return the model of some of its layers alone.

        >>> from hespas.models.catalogue import model_named
        >>> part = model_named("gemma3-12b").settings.with_layers(2, first=5)
        >>> [kind.window for kind in part.kinds]
        [0, 1024]
        """
        sizes = replace(self.sizes_of_layers, layers=layers)
        return replace(self, sizes_of_layers=sizes, pattern=self.kinds[first : first + layers])


def _check_pages(page_size: int, tokens: int, name: str) -> None:
    if page_size and tokens % page_size:
        raise ConfigError(
            f"{name} = {tokens} is not divided into pages of {page_size}",
            hint=f"choose a {name} that is a multiple of page_size = {page_size}",
        )


def has_shared_experts(settings: object) -> bool:
    """Return whether a model has experts that take all tokens.

    >>> from hespas.models.catalogue import model_named
    >>> [has_shared_experts(model_named(name).settings) for name in ("deepseek-v3", "mixtral-8x7b")]
    [True, False]
    """
    routing = settings.routing if isinstance(settings, LanguageModel) else None
    return routing is not None and routing.shared_width > 0


@cache
def _kinds(layers: int, window: int, global_every: int, dense: int) -> tuple[LayerKind, ...]:
    return tuple(
        LayerKind(
            window=window if (index + 1) % global_every else 0,
            is_routed=index >= dense,
        )
        for index in range(layers)
    )


_LONG = ("state_space", "delta")
"""Mixers of about twice as many operations as attention: Qwen3-Next's four layers take 22 s to
predict where DeepSeek-V3's take 8 s, beside what every step takes."""


@cache
def _plan(kinds: tuple[LayerKind, ...]) -> Plan[LayerKind]:
    return plan_of(kinds, {kind: 2 if kind.mixer in _LONG else 1 for kind in kinds})
