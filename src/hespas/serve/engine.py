"""Engines: how each fills an iteration and divides its memory, and what a replica runs.

Sources of the defaults: vLLM, vllm/engine/arg_utils.py (get_batch_defaults), vllm/config/cache.py,
vllm/config/scheduler.py and the capture sizes of vllm/config/vllm.py; SGLang 0.5.9, server_args.py
(_handle_gpu_memory_settings, _generate_cuda_graph_batch_sizes) and managers/scheduler.py (which
divides chunked_prefill_size by dp_size); TensorRT-LLM, llm_args.py
(SchedulerConfig, KvCacheConfig with its reuse of blocks, max_batch_size 2048 and max_num_tokens
8192). All three share prefixes by default. vLLM frees blocks of layers with a window
(v1/core/single_type_kv_cache_manager.py, SlidingWindowManager); SGLang divides its memory in
advance (swa_full_tokens_ratio). Pipelines: vLLM 0.33, v1/core/sched/scheduler.py (max_num_seqs
are those of all batches); SGLang 0.5.9, managers/scheduler.py (pp_max_micro_batch_size);
TensorRT-LLM, get_max_num_sequences of pyexecutor/model_engine.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.metadata import entry_points

import msgspec

from hespas.base.configs import CONFIGS
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option
from hespas.serve.load import PICOSECONDS
from hespas.serve.step_times import StepTimes

_LARGE_BYTES = 70 * 2**30
"""vLLM's defaults are those of large parts from so much memory on, but on A100."""
_A100 = "A100"


class Reserve(Enum):
    """The tokens whose blocks must be free at admission."""

    PROMPT = "prompt"
    """The prompt: the last request admitted is preempted where blocks run out, and recomputed."""
    OUTPUT = "output"
    """All of it: nothing is ever preempted."""


class BatchLimit(Enum):
    """Which batches of a pipeline ``Engine.most_sequences`` limits."""

    TOGETHER = "together"
    """All batches that are under way."""
    SHARED = "shared"
    """All batches: each has an even share."""
    EACH = "each"
    """Each batch."""


class MemoryRule(Enum):
    """Of what ``Engine.memory_share`` is a share."""

    OF_ALL = "all"
    """Of the device's memory, with weights and workspace in it."""
    WEIGHTS_AND_CACHE = "weights and cache"
    """Of the device's memory, with the weights in it; the rest is for the workspace."""
    OF_FREE = "free"
    """Of what weights and workspace leave."""


class MoreLayers(Enum):
    """Which stages have a layer more than others."""

    MIDDLE = "middle"
    """The last but one, and others before it (vLLM, get_pp_indices of distributed/utils.py)."""
    LAST = "last"
    """The last ones (SGLang, get_pp_indices of srt/distributed/utils.py)."""
    FIRST = "first"
    """The first ones (TensorRT-LLM, Mapping.pp_layers of mapping.py)."""


@frozen
class Engine:
    """How an engine fills iterations.

    An iteration has at most ``token_budget`` tokens of at most ``most_sequences``. One that
    ``mixes`` has decoding sequences first and prompts with what is left, another either prompts,
    which go first, or decoding sequences. Prompts are cut into chunks where ``cuts_prompts``.
    CUDA graphs serve decoding batches of ``graph_sizes``, which others are padded up to. Keys and
    values stand in blocks of ``block_tokens``, and are kept for requests with the same prefix where
    the engine ``caches_prefixes``. ``host_s`` is what an iteration waits for the host: 0 where the
    engine schedules the next iteration while one runs. One that ``plans_ahead`` does so as that
    starts: what comes later waits for it to end, and for the next. Parts with attention of their
    own have a ``token_budget`` each, or together where the engine ``divides_budget``. Blocks of
    layers that attend to a window are free beyond it where the engine ``frees_windows``. One looks
    for requests in each iteration with prompts, and once in ``poll_interval`` others. One that does
    not plan ahead waits ``unhidden_s`` in each iteration, and for each sequence of it. A pipeline's
    batches are limited by ``batch_limit``, and ``more_layers`` says which stages are longer.
    """

    name: str
    token_budget: int
    most_sequences: int
    mixes: bool
    cuts_prompts: bool
    reserve: Reserve
    block_tokens: int
    memory_rule: MemoryRule
    memory_share: float = 0.0
    graph_sizes: tuple[int, ...] = ()
    caches_prefixes: bool = True
    host_s: float = 0.0
    plans_ahead: bool = True
    divides_budget: bool = False
    frees_windows: bool = False
    poll_interval: int = 1
    unhidden_s: tuple[float, float] = (0.0, 0.0)
    batch_limit: BatchLimit = BatchLimit.TOGETHER
    more_layers: MoreLayers = MoreLayers.MIDDLE
    launch: str = ""
    flags: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the launch command has beside, by what is served; a missing one is not known."""

    def host_ps(self, sequences: int) -> int:
        """Return the ps that an iteration waits for the host.

        >>> engine = vllm(memory_bytes=80 * 2**30, part="H100")
        >>> engine.host_ps(100), replace(engine, plans_ahead=False).host_ps(100)
        (0, 4400000000)
        """
        fixed_s, of_sequence_s = (0.0, 0.0) if self.plans_ahead else self.unhidden_s
        return round((self.host_s + fixed_s + of_sequence_s * sequences) * PICOSECONDS)

    def padded(self, sequences: int) -> int:
        """Return a batch's CUDA graph size; larger batches run without graphs.

        >>> vllm(memory_bytes=80 * 2**30, part="H100").padded(9)
        16
        """
        position = bisect_left(self.graph_sizes, sequences)
        return self.graph_sizes[position] if position < len(self.graph_sizes) else sequences

    def cache_bytes(self, *, capacity: int, weights: int, workspace: int) -> int:
        """Return a device's bytes for keys and values; 0 without room."""
        match self.memory_rule:
            case MemoryRule.OF_ALL:
                cache = self.memory_share * capacity - weights - workspace
            case MemoryRule.WEIGHTS_AND_CACHE:
                cache = self.memory_share * capacity - weights
            case MemoryRule.OF_FREE:
                cache = self.memory_share * (capacity - weights - workspace)
        return max(0, int(cache))


@frozen
class Setup:
    """What a replica runs: an engine, step times, and cache blocks.

    The batch of a replica is divided over ``parts`` that hold its weights in common. One that
    ``only_prefills`` makes the first token of each request. ``times`` are of all layers; the
    ``stages`` of a pipeline have their own, none without one. Beyond the ``window`` of step times a
    block holds ``tokens_beyond``, 0 for any number, and a sequence has ``state_blocks`` beside.
    """

    engine: Engine
    times: StepTimes
    blocks: int
    parts: int = 1
    tokens_beyond: int | None = None
    state_blocks: int = 0
    speculation: Speculation | None = None
    only_prefills: bool = False
    stages: tuple[StepTimes, ...] = ()

    def is_beyond(self, tokens: int) -> bool:
        """Return whether a sequence with ``tokens`` has grown beyond the window."""
        return self.tokens_beyond is not None and tokens > self.times.window

    def blocks_of(self, tokens: int, *, joined: int | None = None) -> int:
        """Return the blocks of a sequence with this many tokens."""
        block, window = self.engine.block_tokens, self.times.window
        if not self.is_beyond(tokens if joined is None else joined):
            return -(-tokens // block) + self.state_blocks
        more = -(-(tokens - window) // self.tokens_beyond) if self.tokens_beyond else 0
        return -(-window // block) + more + self.state_blocks


@frozen
class Speculation:
    """Tokens guessed ahead, accepted in order with a probability each.

    A guess takes ``draft_share`` of the iteration that checks it. Source of the mean: Leviathan et
    al., Fast Inference from Transformers via Speculative Decoding, ICML 2023, equation 1.
    """

    tokens: int
    acceptance: float
    draft_share: float

    @property
    def made(self) -> float:
        """The mean number of tokens that an iteration makes of a sequence.

        >>> Speculation(tokens=3, acceptance=0.5, draft_share=0.0).made
        1.875
        """
        return sum(self.acceptance**guessed for guessed in range(self.tokens + 1))


def layers_of_stages(layers: int, stages: int, more: MoreLayers) -> tuple[int, ...]:
    """Return how many layers each stage has.

    >>> [layers_of_stages(30, 4, more) for more in MoreLayers]
    [(7, 8, 8, 7), (7, 7, 8, 8), (8, 8, 7, 7)]
    """
    fewest, remainder = divmod(layers, stages)
    match more:
        case MoreLayers.MIDDLE:
            longer = range(stages - 1 - remainder, stages - 1)
        case MoreLayers.LAST:
            longer = range(stages - remainder, stages)
        case MoreLayers.FIRST:
            longer = range(remainder)
    return tuple(fewest + (stage in longer) for stage in range(stages))


@dataclass(slots=True, kw_only=True)
class StageClock:
    """When each stage of a pipeline is free, in ps."""

    free_ps: list[int]

    def through(self, ready_ps: int, times_ps: Sequence[int]) -> int:
        """Return when a batch leaves the last stage.

        >>> clock = StageClock(free_ps=[0, 0])
        >>> clock.through(0, (5, 5)), clock.through(0, (5, 5)), clock.through(12, (5, 5))
        (10, 15, 22)
        """
        for stage, time_ps in enumerate(times_ps):
            ready_ps = max(ready_ps, self.free_ps[stage]) + time_ps
            self.free_ps[stage] = ready_ps
        return ready_ps


_DEFAULTS = msgspec.json.decode((CONFIGS / "engines.json").read_bytes(), type=dict[str, Engine])
"""Engines by name, without what follows from a part and its memory.

vLLM's ``unhidden_s`` is chosen for 13 published points of one model (Qwen3-32B, 2 to 8 devices)
under vLLM 0.12.0, which does not schedule ahead; docs/evidence/serving.md has their errors, layouts
left out too. Both sides of a transfer of its keys and values have the same flag (vLLM,
docs/features/nixl_connector_usage.md)."""


def _capture_sizes(most_sequences: int, most_tokens: int) -> tuple[int, ...]:
    most = min(2 * most_sequences, 512, most_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)]
    return tuple(size for size in sizes if size <= most)


def vllm(*, memory_bytes: int, part: str, devices: int = 1) -> Engine:
    """Return vLLM V1 as ``vllm serve`` starts it."""
    del devices
    is_large = memory_bytes >= _LARGE_BYTES and not part.startswith(_A100)
    budget, sequences = (8192, 1024) if is_large else (2048, 256)
    return replace(
        _DEFAULTS["vllm"],
        token_budget=budget,
        most_sequences=sequences,
        graph_sizes=_capture_sizes(sequences, budget),
    )


_SGLANG_SIZES = (
    # GiB below, tokens of an iteration, largest CUDA graph of fewer than 4 devices, and of more
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
_SGLANG_MANY = 4
"""Devices of a replica from which on CUDA graphs are larger."""


def _sglang_share(memory_bytes: int, *, budget: int, graphs: int, devices: int) -> float:
    """Return the share of memory that SGLang has for weights and cache.

    >>> round(_sglang_share(80 * 2**30, budget=8192, graphs=256, devices=1), 3)
    0.836
    """
    memory_mib = memory_bytes / 2**20
    reserved_mib = 512 + 1.5 * max(budget, 2048) + 2 * graphs + 128 * devices
    if memory_mib > 60 * 1024:
        reserved_mib = max(reserved_mib, 10 * 1024)
    return (memory_mib - reserved_mib) / memory_mib


def sglang(*, memory_bytes: int, part: str, devices: int = 1) -> Engine:
    """Return SGLang for a replica of ``devices`` on a part."""
    del part
    below = (sizes for sizes in _SGLANG_SIZES if memory_bytes < sizes[0] * 2**30)
    _, budget, few, many = next(below)
    graphs = few if devices < _SGLANG_MANY else many
    sizes = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16))
    return replace(
        _DEFAULTS["sglang"],
        token_budget=budget,
        memory_share=_sglang_share(memory_bytes, budget=budget, graphs=graphs, devices=devices),
        graph_sizes=tuple(size for size in sizes if size <= graphs),
    )


def tensorrt_llm(*, memory_bytes: int, part: str, devices: int = 1) -> Engine:
    """Return TensorRT-LLM on a part, in the PyTorch flow."""
    del memory_bytes, part, devices
    return _DEFAULTS["trtllm"]


ENGINES = {"vllm": vllm, "sglang": sglang, "trtllm": tensorrt_llm}
_ENTRY_POINTS = "hespas.engines"


def engine_named(name: str, *, memory_bytes: int, part: str, devices: int = 1) -> Engine:
    """Return an engine with the defaults of a part and replica.

    Another package adds one by an entry point of the group ``hespas.engines``: a function of
    ``memory_bytes`` and ``part`` that returns an `Engine`. Raises `ConfigError` for an unknown one.
    """
    added: Mapping[str, object] = {point.name: point for point in entry_points(group=_ENTRY_POINTS)}
    if name in ENGINES:
        return ENGINES[name](memory_bytes=memory_bytes, part=part, devices=devices)
    if name in added:
        (point,) = entry_points(group=_ENTRY_POINTS, name=name)
        return point.load()(memory_bytes=memory_bytes, part=part)
    names = (*ENGINES, *added)
    raise ConfigError(f"{option('engine')} is {name!r}", hint=suggestion(name, names))
