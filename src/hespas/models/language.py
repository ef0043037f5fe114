"""A language model: its parts, and how it is run.

A model of the zoo is a `LanguageModel`; `hespas.models.families` lists those of a family.
`training` and `serving` of `hespas.models.steps` make its steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cache
from itertools import cycle, islice

from hespas.base.frozen import frozen
from hespas.models import checks
from hespas.models.architecture import (
    Delta,
    Latent,
    LayerKind,
    Routing,
    Sizes,
    StateSpace,
    Style,
)
from hespas.models.model import LORA_MODULES, MeshAxes
from hespas.models.plan import Plan, plan_of
from hespas.models.quantization import PARTS, SCALED, Precision
from hespas.models.runs import Decode, Prefill, Run, Training

MTP_NOTE = "heads that predict further tokens are left out (mtp_layers=1 trains one)"
_LARGEST_HEAD = 256
"""Of the fused kernels for GPUs. Source: NVIDIA, cuDNN frontend, "Scaled Dot Product Attention"."""


@frozen
class LanguageModel:
    """A decoder and how it is run.

    Parts that it lacks are None. ``pattern`` are the kinds of its layers, in order and again from
    the front; without one they are alike but for dense layers.
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
        return f"hespas.models.steps.{'training' if isinstance(self.run, Training) else 'serving'}"

    @property
    def mesh(self) -> MeshAxes:
        """The mesh that it is divided over."""
        return self.run.mesh

    @property
    def training(self) -> Training:
        """How it is trained; in inference as nothing is changed."""
        run = self.run
        return run if isinstance(run, Training) else Training(mesh=run.mesh, remat="none")

    @property
    def served(self) -> Prefill | Decode:
        """How it is run in inference."""
        run = self.run
        assert not isinstance(run, Training)  # noqa: S101 - for the type checker
        return run

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
        return self.training.accumulation

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.sizes_of_layers.layers

    @property
    def dtype(self) -> str:
        """The type that is computed in."""
        return self.run.dtype

    @property
    def gradient_dtype(self) -> str:
        """The type in which a pipeline sums gradients over micro-batches."""
        dtype = self.training.gradient_dtype
        return self.state_dtype if dtype == "same" else dtype

    @property
    def state_dtype(self) -> str:
        """The type of weights, and in training of both moments."""
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
    def parts(self) -> int:
        """How many data-parallel parts the mesh has."""
        return self.mesh.size(*self.axes["batch"])

    @property
    def head_sizes(self) -> tuple[int, int]:
        """The lengths of one head's key and value."""
        if self.latent is None:
            return self.sizes_of_layers.head_size, self.sizes_of_layers.head_size
        return self.sizes_of_layers.head_size + self.latent.rope_size, self.latent.value_size

    @property
    def kv_heads(self) -> int:
        """The key and value heads on all tensor-parallel devices.

        Where a model is served by several times as many devices as it has, each head is on several
        of them, as TensorRT-LLM and vLLM have it.
        """
        return self._heads_over_devices(self.sizes_of_layers.kv_heads or self.sizes_of_layers.heads)

    def _heads_over_devices(self, heads: int) -> int:
        devices = self.mesh.size("tp")
        repeats = devices > heads and devices % heads == 0 and self.latent is None
        return devices if repeats and not isinstance(self.run, Training) else heads

    @property
    def merges_products(self) -> bool:
        """Whether products of the same rows are one.

        They are where weights are never changed. In training a framework says so; where none does,
        they are in few bits, as Transformer Engine holds such weights side by side.
        """
        run = self.run
        if not isinstance(run, Training):
            return True
        return run.product_dtype != "same" if run.same_rows == "auto" else run.same_rows == "joined"

    @property
    def lora_modules(self) -> tuple[str, ...]:
        """The modules that have adapters, if any are trained."""
        run = self.training
        if not run.lora_rank:
            return ()
        return LORA_MODULES if run.lora_modules == "all" else tuple(run.lora_modules.split("+"))

    def has_adapters(self, module: str) -> bool:
        """Return whether a layer has weights of an adapted module.

        Of latent attention what makes heads has other names in Megatron-Core.
        """
        kinds, has_experts = set(self.kinds), self.routing is not None
        attends = any(kind.mixer == "attention" for kind in kinds)
        match module:
            case "linear_qkv":
                return attends and self.latent is None
            case "linear_proj":
                return attends
            case _:
                return has_experts or any(kind.feeds_forward for kind in kinds)

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        run = self.run
        first = 0 if isinstance(run, Training) else run.first_layer
        until = first + self.layers
        if self.pattern:
            kinds = tuple(islice(cycle(self.pattern), first, until))
        else:
            dense = until if self.routing is None else self.routing.dense_layers
            kinds = _kinds(until, dense)[first:]
        tokens = self.training.document_length
        return _within_documents(kinds, tokens) if tokens else kinds

    @property
    def mtp_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of layers that predict further tokens."""
        return self.kinds[-1:] * self.training.mtp_layers

    @property
    def is_windowed(self) -> bool:
        """Whether layers see a part of the earlier tokens alone."""
        return any(kind.window or kind.chunk for kind in self.kinds)

    @property
    def has_states(self) -> bool:
        """Whether layers carry states along a sequence."""
        return any(kind.mixer in _LONG for kind in self.kinds)

    def rotation(self, kind: LayerKind) -> tuple[int, float]:
        """Return how many numbers rotate, and their longest period's base.

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
        """Return a layer's attention method; large heads aren't fused."""
        is_large = max(kind.head_size, self.head_sizes[0]) > _LARGEST_HEAD
        return "unfused" if is_large and self.run.attention != "splash" else self.run.attention

    @property
    def selects_tokens(self) -> bool:
        """Whether attention reads only the tokens that an index chooses.

        New tokens over a cache do, and prompts by FlashMLA's kernels. Other prompts and training do
        where that is fewer FLOPs: vectors of ``kv_rank`` for each of the chosen tokens, against
        keys and values of heads for half of all. In shorter sequences all are multiplied, and
        others masked. Source: DeepSeek-AI, DeepSeek-V3.2, 2025, section 2.3 (masked multi-head mode
        for short prompts).
        """
        latent = self.latent
        if latent is None or not self.is_longer_than_index:
            return False
        if isinstance(self.run, Decode):
            return self.run.new_tokens == 1
        if self.run.attention == "flashmla":
            return True
        chosen = (2 * latent.kv_rank + latent.rope_size) * latent.indexed_tokens
        return chosen < sum(self.head_sizes) * self.sequence / 2

    @property
    def masks_tokens(self) -> bool:
        """Whether an index rates tokens while attention reads all.

        Engines do not ask it in steps over no more tokens than it chooses.
        """
        latent = self.latent
        if latent is None or not latent.indexed_tokens or self.selects_tokens:
            return False
        return isinstance(self.run, Training) or self.is_longer_than_index

    @property
    def is_longer_than_index(self) -> bool:
        """Whether there are more tokens than an index chooses."""
        latent = self.latent
        return latent is not None and 0 < latent.indexed_tokens < self.context

    @property
    def plan(self) -> Plan[LayerKind]:
        """The order of the layers, as loops need it."""
        return _plan(self.kinds)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of array dimensions."""
        sizes = self.sizes_of_layers
        named_sizes = {
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
            "lora_rank": self.training.lora_rank,
        }
        for part in (self.latent, self.routing, self.state_space, self.delta):
            named_sizes |= {} if part is None else _own_sizes(part)
        if (latent := self.latent) is not None:
            named_sizes |= {
                "query_norm": latent.query_rank,
                "latent_norm": latent.kv_rank,
                "latent": latent.kv_rank + latent.rope_size,
                "query_size": sizes.head_size + latent.rope_size,
            }
        if (routing := self.routing) is not None:
            named_sizes |= {
                "choices": routing.experts,
                "shared_mlp": routing.shared_width,
                "expert_row": routing.latent_size or sizes.embedding,
            }
        for mixer in (self.state_space, self.delta):
            named_sizes |= {} if mixer is None else {"earlier_rows": mixer.convolution - 1}
        return named_sizes

    def sizes_of(self, kind: LayerKind) -> dict[str, int]:
        """Return the sizes in which a kind of layer differs."""
        heads = self._heads_over_devices(kind.kv_heads) if kind.kv_heads else self.kv_heads
        return {
            "context": self._cached_tokens(kind),
            "head_size": kind.head_size or self.sizes_of_layers.head_size,
            "kv_heads": heads,
            "attended_kv_heads": heads,
            "heads_of_kv_head": self.sizes_of_layers.heads // heads + 2,
            "mlp": kind.mlp or self.sizes_of_layers.mlp,
        }

    def _cached_tokens(self, kind: LayerKind) -> int:
        """Return how many tokens a kind of layer caches.

        A window or a chunk caches its last ones. Several new tokens each have a window of their
        own, in the order of tokens.
        """
        seen = kind.window or kind.chunk
        is_ring = seen > 0 and getattr(self.run, "new_tokens", 1) == 1
        return min(self.context, seen) if is_ring else self.context

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide a dimension, major first.

        ``norm_sequence`` is the sequence between the products of a layer, ``queries`` and the
        attended heads those inside of attention.
        """
        experts = self.routing.axes if self.routing is not None else ()
        tokens = tuple(axis for axis in experts if axis == "expert")
        divided: dict[str, tuple[str, ...]] = {
            "batch": ("data", *tokens),
            "sequence": (),
            "heads": ("tp",),
            "kv_heads": ("tp",),
            "attended_heads": ("tp",),
            "attended_kv_heads": ("tp",),
            "mlp": ("tp",),
            "shared_mlp": ("tp",),
            "expert_mlp": () if "tp" in experts else ("tp",),
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
            "batch": ("data", *tokens, "fsdp"),
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
        """The mesh axes that divide each dimension of states.

        With ZeRO ``data`` does, too. Where weights are gathered along ``data``, its devices have
        neighbouring parts.
        """
        run = self.training
        if not run.zero:
            return self.axes
        return self.axes | self.sharded(("data", "fsdp") if run.zero == 3 else ("fsdp", "data"))

    def sharded(self, axes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Return the weights' dimensions that mesh axes divide.

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
        checks.check(self)

    def why_not(self, kernels: str) -> str:
        """Return why kernels of `FUSED` cannot compute attention, or ""."""
        return checks.why_not(self, kernels)

    @property
    def as_run(self) -> LanguageModel:
        """The model whose style says how its operations become kernels."""
        run, style = self.training, self.style
        if run.embedding_lookup != "auto":
            style = replace(style, one_hot=run.embedding_lookup == "product")
        experts, rotation = run.expert_kernels == "eager", run.rotary_kernels == "eager"
        if run.eager or experts or rotation:
            style = replace(style, eager=run.eager, eager_experts=experts, eager_rotation=rotation)
        return self if style is self.style else replace(self, style=style)

    @property
    def has_slow_experts(self) -> bool:
        """Whether Megatron-LM fuses no activation of its experts.

        It fuses none with biases, and none that is cut off.
        """
        routing, style = self.routing, self.style
        return routing is not None and (
            routing.style.biases or (style.gated and style.activation == "clipped_silu")
        )

    @property
    def rotates_heads(self) -> bool:
        """Whether attention without latent vectors has rotary positions."""
        style = self.style
        return self.latent is None and not (style.alibi or style.learned_positions)

    @property
    def scales_rotation(self) -> bool:
        """Whether rotation multiplies what it rotates.

        Megatron-LM has no kernel for that.
        """
        scaling = self.style.rotary_scaling
        return self.rotates_heads and scaling is not None and scaling.amplitude != 1

    def first_like(self, begin: int, layers: int) -> int:
        """Return the first layers with these layers' kinds."""
        kinds = self.kinds
        group = kinds[begin : begin + layers]
        return next(first for first in range(begin + 1) if kinds[first : first + layers] == group)

    def with_layers(self, layers: int, *, first: int = 0) -> LanguageModel:
        """Return the model of some of its layers alone.

        >>> from hespas.models.catalogue import model_named
        >>> part = model_named("gemma3-12b").settings.with_layers(2, first=5)
        >>> [kind.window for kind in part.kinds]
        [0, 1024]
        """
        sizes = replace(self.sizes_of_layers, layers=layers)
        return replace(self, sizes_of_layers=sizes, pattern=self.kinds[first : first + layers])


def expert_axes(settings: object) -> tuple[str, ...]:
    """Return the mesh axes that divide a model's experts.

    >>> from hespas.models.catalogue import model_named
    >>> expert_axes(model_named("mixtral-8x7b").settings)
    ('expert',)
    """
    routing = settings.routing if isinstance(settings, LanguageModel) else None
    return () if routing is None else routing.axes


def has_shared_experts(settings: object) -> bool:
    """Return whether a model has experts that take all tokens.

    >>> from hespas.models.catalogue import model_named
    >>> [has_shared_experts(model_named(name).settings) for name in ("deepseek-v3", "mixtral-8x7b")]
    [True, False]
    """
    routing = settings.routing if isinstance(settings, LanguageModel) else None
    return routing is not None and routing.shared_width > 0


def _own_sizes(part: Latent | Routing | StateSpace | Delta) -> dict[str, int]:
    """Return the sizes of a part by the names of its fields."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value for name, value in values.items() if isinstance(value, int)}


@cache
def _kinds(layers: int, dense: int) -> tuple[LayerKind, ...]:
    return shared_kinds(LayerKind(is_routed=index >= dense) for index in range(layers))


def shared_kinds(kinds: Iterable[LayerKind]) -> tuple[LayerKind, ...]:
    """Return the kinds, with equal ones as one object."""
    shared: dict[LayerKind, LayerKind] = {}
    return tuple(shared.setdefault(kind, kind) for kind in kinds)


@cache
def _within_documents(kinds: tuple[LayerKind, ...], tokens: int) -> tuple[LayerKind, ...]:
    return tuple(
        replace(kind, chunk=min(kind.chunk or tokens, tokens))
        if kind.mixer == "attention"
        else kind
        for kind in kinds
    )


_LONG = ("state_space", "delta")
"""Mixers of about twice as many operations as attention: Qwen3-Next's four layers take 22 s to
predict where DeepSeek-V3's take 8 s, beside what every step takes."""


@cache
def _plan(kinds: tuple[LayerKind, ...]) -> Plan[LayerKind]:
    return plan_of(kinds, {kind: 2 if kind.mixer in _LONG else 1 for kind in kinds})
