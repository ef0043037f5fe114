"""The packages ``flash_attn`` and ``flash_attn_interface``, whose kernels need a GPU.

Functions of the same names and arguments record one operation each, forward and backward.
Source of names, arguments and layouts: Dao-AILab/flash-attention 2.8.3,
``flash_attn/flash_attn_interface.py``, ``flash_attn/bert_padding.py`` and
``hopper/flash_attn_interface.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from inspect import Parameter, Signature
from itertools import pairwise
from math import ceil
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.library import custom_op, register_fake
from torch.nn import functional

from hespas.errors import UnsupportedError
from hespas.torch.host import DeviceValues
from hespas.torch.places import Places

_ALL = (-1, -1)
_COMMON = "softcap alibi_slopes deterministic return_attn_probs"
_SECOND = f"dropout_p softmax_scale causal window_size {_COMMON}"
_THIRD = (
    "softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap"
    " num_splits pack_gqa deterministic sm_margin return_attn_probs"
)
_ROWS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
_DEFAULTS = {"causal": False, "window_size": _ALL, "return_attn_probs": False}
_REFUSED = ("qv", "block_table", "seqused_q", "seqused_k", "attention_chunk")
_DECODING = "flash_attn_with_kvcache"
_ARRAYS = ("q", "k", "v", "kv", "qkv")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Package:
    """A package: its distribution, and the arguments of its functions in their order."""

    name: str
    distribution: str
    version: str
    kernel: str
    time: str
    functions: Mapping[str, str]


_PACKAGES = (
    _Package(
        name="flash_attn",
        distribution="flash-attn",
        version="2.8.3",
        kernel="flash_attention_2",
        time="FlashAttention-2",
        functions={
            "flash_attn_func": f"q k v {_SECOND}",
            "flash_attn_kvpacked_func": f"q kv {_SECOND}",
            "flash_attn_qkvpacked_func": f"qkv {_SECOND}",
            "flash_attn_varlen_func": f"q k v {_ROWS} {_SECOND} block_table",
            "flash_attn_varlen_kvpacked_func": f"q kv {_ROWS} {_SECOND}",
            "flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {_SECOND}",
        },
    ),
    _Package(
        name="flash_attn_interface",
        distribution="flash-attn-3",
        version="3.0.0",
        kernel="flash_attention_3",
        time="the attention that was measured on the part",
        functions={
            "flash_attn_func": f"q k v {_THIRD}",
            "flash_attn_varlen_func": f"q k v {_ROWS} seqused_q seqused_k {_THIRD}",
        },
    ),
)


def install_flash_attention(values: DeviceValues, places: Places) -> None:
    """Let programs import the packages."""
    for name, (function, written) in _OPERATIONS.items():
        custom_op(name, function, mutates_args=written)
        register_fake(name, function)
    for package in _PACKAGES:
        module = _module(package.name)
        for name, arguments in package.functions.items():
            function = _Function(
                package=package, values=values, places=places, signature=_signature(arguments)
            )
            setattr(module, name, function.named(name))
        setattr(module, _DECODING, _refusing(places))
        module.__dict__["__version__"] = package.version
    second = sys.modules["flash_attn"]
    for name, members in (
        ("flash_attn_interface", vars(second)),
        ("bert_padding", {each.__name__: each for each in (pad_input, unpad_input)}),
    ):
        inner = _module(f"flash_attn.{name}")
        inner.__dict__.update({key: member for key, member in members.items() if key[0] != "_"})
        setattr(second, name, inner)
    sys.meta_path.append(_Finder())


def _module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package="." not in name)
    module.__path__ = []
    sys.modules[name] = module
    return module


def _signature(names: str) -> Signature:
    return Signature(
        [
            Parameter(name, Parameter.POSITIONAL_OR_KEYWORD)
            if name in _ARRAYS or name.startswith(("cu_", "max_"))
            else Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=_DEFAULTS.get(name))
            for name in names.split()
        ]
    )


class _Finder(DistributionFinder):
    """Finds the packages' versions, for programs that ask which are installed."""

    def find_spec(self, *_arguments: Any) -> None:
        """Find no module."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """Yield the distributions of a name, or all."""
        name = None if context is None else context.name
        for package in _PACKAGES:
            if name in {None, package.name, package.distribution}:
                yield _Installed(package)


class _Installed(Distribution):
    def __init__(self, package: _Package) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        """Return a file of the distribution."""
        package = self._package
        about = f"Metadata-Version: 2.1\nName: {package.distribution}\nVersion: {package.version}\n"
        return {"METADATA": about, "top_level.txt": package.name}.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Return where a file would be."""
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    """A function of a package."""

    package: _Package
    values: DeviceValues
    places: Places
    signature: Signature

    def named(self, name: str) -> Callable[..., Any]:
        """Return a function with the package's name and arguments."""

        def function(*arguments: Any, **options: Any) -> Any:
            bound = self.signature.bind(*arguments, **options)
            bound.apply_defaults()
            return self._call(bound.arguments)

        function.__name__ = name
        function.__dict__["__signature__"] = self.signature
        return function

    def _call(self, given: Mapping[str, Any]) -> Any:
        refused = next((name for name in _REFUSED if given.get(name)), None)
        if refused is not None:
            raise UnsupportedError(
                f"{refused} of {self.package.name} is not recorded", location=self.places.line()
            )
        self.places.notes[
            f"attention: {self.package.name} is called, and not its kernels: they take the time of "
            f"{self.package.time}, without dropout, soft caps and slopes"
        ] = None
        arrays = [given[name] for name in _ARRAYS if name in given]
        rows = [given[name] for name in given if name.startswith("cu_")]
        result, statistics = _Attention.apply(self._work(arrays, rows, given), *arrays)
        results = (result[0], statistics[0]) if rows else (result, statistics)
        if not given["return_attn_probs"]:
            return results[0]
        return (*results, None) if self.package.name == "flash_attn" else results

    def _work(self, arrays: Sequence[Any], rows: Sequence[Any], given: Mapping[str, Any]) -> _Work:
        kernel, is_causal = self.package.kernel, bool(given["causal"])
        left, right = given["window_size"]
        query, key, _ = _parts(arrays)
        queries, keys = query.shape[1], key.shape[1]
        if not rows and queries == keys and (is_causal or (left, right) == _ALL):
            return _Work(kernel=kernel, is_causal=is_causal, window=left)
        lengths = [(queries, keys)]
        if rows:
            lengths = list(zip(self._lengths(rows[0]), self._lengths(rows[-1]), strict=True))
        reach = (left, 0 if is_causal else right)
        pairs = sum(_pairs(*both, reach) for both in lengths)
        if not is_causal or any(of_query != of_key for of_query, of_key in lengths):
            return _Work(kernel=kernel, attended=pairs / max(1, queries * keys))
        longest = max(length for length, _ in lengths)
        every = ceil(queries / longest) * _pairs(longest, longest, (-1, 0))
        return _Work(kernel=kernel, is_causal=True, attended=pairs / every, longest=longest)

    def _lengths(self, rows: Any) -> list[int]:
        known = self.values.of(rows)
        if not self.values.host.is_known(known):
            raise UnsupportedError(
                f"the lengths of sequences that {self.package.name} gets depend on tensors without "
                "data",
                location=self.places.line(),
                hint='make cu_seqlens on the host, and copy it (.to("cuda"))',
            )
        with unset_fake_temporarily():
            return [after - before for before, after in pairwise(known.tolist())]


def _refusing(places: Places) -> Callable[..., Any]:
    """Return what raises `UnsupportedError` in the place of attention over a cache."""

    def refused(*_arguments: Any, **_options: Any) -> Any:
        raise UnsupportedError(
            f"{_DECODING} is not recorded",
            location=places.line(),
            hint="`hespas run torch:hf:MODEL --decode` predicts a decode step",
        )

    return refused


def _pairs(queries: int, keys: int, reach: tuple[int, int]) -> int:
    """Return the pairs of queries and keys; the last query is at the last key."""
    left, right = reach
    with unset_fake_temporarily():
        positions = torch.arange(keys - queries, keys)
        first = positions - left if left >= 0 else torch.zeros_like(positions)
        last = positions + right + 1 if right >= 0 else torch.full_like(positions, keys)
        return int((last.clamp(max=keys) - first.clamp(min=0)).clamp(min=0).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What a call computes.

    A window of -1 has no end. ``attended`` is the share of all pairs, of as many sequences as
    ``longest`` as fill the rows, if that is not 0.
    """

    kernel: str
    is_causal: bool = False
    window: int = -1
    attended: float = 1.0
    longest: int = 0

    @property
    def arguments(self) -> tuple[bool, int, str, float, int]:
        """The arguments of the operations behind their tensors."""
        return self.is_causal, self.window, self.kernel, self.attended, self.longest


class _Attention(torch.autograd.Function):
    """Attention of queries, keys and values in one array, two or three."""

    @staticmethod
    def forward(ctx: Any, work: _Work, *arrays: torch.Tensor) -> Any:
        """Return the result and its statistics."""
        results = torch.ops.hespas.flash_attention(*_parts(arrays), *work.arguments)
        ctx.save_for_backward(*arrays, *results)
        ctx.work = work
        ctx.mark_non_differentiable(results[1])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients of the arrays."""
        *arrays, result, statistics = ctx.saved_tensors
        written = [torch.empty_like(array) for array in arrays]
        torch.ops.hespas.flash_attention_backward(
            *(gradients[0], *_parts(arrays), result, statistics),
            *(*_parts(written), *ctx.work.arguments),
        )
        return None, *written


def _parts(arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return queries, keys and values with a batch; of packed ones each lies before the heads."""
    parts: list[torch.Tensor] = []
    for position, array in enumerate(arrays):
        is_packed = len(arrays) < 3 and position == len(arrays) - 1
        parts += array.unbind(-3) if is_packed else [array]
    return [part if part.dim() == 4 else part.unsqueeze(0) for part in parts]


# ruff: disable[PLR0917]
# Operations of torch have no keywords.
def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    window_size_left: int,
    kernel: str,
    attended: float,
    longest: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend; arrays are (batch, length, heads, size)."""
    del key, is_causal, window_size_left, kernel, attended, longest
    batch, length, heads, _ = query.shape
    statistics = query.new_empty((batch, heads, length), dtype=torch.float32)
    return query.new_empty((batch, length, heads, value.shape[-1])), statistics


def _backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    result: torch.Tensor,
    statistics: torch.Tensor,
    of_query: torch.Tensor,
    of_key: torch.Tensor,
    of_value: torch.Tensor,
    is_causal: bool,
    window_size_left: int,
    kernel: str,
    attended: float,
    longest: int,
) -> None:
    """Write the gradients of what attended."""


# ruff: enable[PLR0917]
_OPERATIONS: Mapping[str, tuple[Callable[..., Any], Sequence[str]]] = {
    "hespas::flash_attention": (_forward, ()),
    "hespas::flash_attention_backward": (_backward, ("of_query", "of_key", "of_value")),
}
"""By name, with the arguments that they write."""


def unpad_input(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: Any = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Return the rows that a mask keeps, their places, first rows, longest and lengths."""
    every = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = every.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    places = torch.nonzero(every.flatten(), as_tuple=False).flatten()
    first = functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    rows = hidden_states.flatten(0, 1)[places]
    return rows, places, first, int(lengths.max().item()), used


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """Return rows at their places in (batch, length), with zeros between them."""
    rows = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    rows[indices] = hidden_states
    return rows.unflatten(0, (batch, seqlen))
