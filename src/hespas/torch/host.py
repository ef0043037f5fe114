"""Tensors of the host: small ones have data, and operations on them run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

MOST_ELEMENTS = 2**16
"""Larger tensors that a script makes on the host have no data: weights of models are among them."""
_MOST_COMPUTED = 2**24
"""Of larger tensors nothing is computed on the host."""
_MOST_FLOATS = 2**23
"""Larger tensors of one floating-point number each are states and gradients, with no use here."""
_MOST_EXPERTS = 1024
"""Of more values, as of a vocabulary, `topk` does not choose experts."""
_MOST_INTEGERS = 2**26
"""Larger tensors of integers have no data; orders of samples are smaller."""


_aten = torch.ops.aten
_UNIFORM = {
    _aten.ones_like.default: 1,
    _aten.zeros_like.default: 0,
    _aten.full_like.default: None,
    _aten.ones.default: 1,
    _aten.zeros.default: 0,
    _aten.full.default: None,
    _aten.new_ones.default: 1,
    _aten.new_zeros.default: 0,
    _aten.new_full.default: None,
    _aten.scalar_tensor.default: None,
}
"""The one value of a result's elements, by operation; None: an argument gives it."""
_FILL_ARGUMENTS = ("fill_value", "s")
"""The arguments that give it."""
_RANGES = frozenset({_aten.arange.default, _aten.arange.start, _aten.arange.start_step})
ROUTED_EVENLY = (
    "experts: each gets as many tokens as any other, on all ranks, as data decides which ones topk"
    " chooses; uneven tokens make steps longer"
)
_UNREAD = ("empty", "new_empty", "set_")
"""Operations whose results have other data than their operands, or none."""
_OF_INTEGERS = ("arange", "randint", "randperm")
"""Operations that make integers of integers."""
_OF_FINITE = {
    _aten.isnan.default: False,
    _aten.isinf.default: False,
    _aten.eq.Tensor: True,
    _aten.ne.Tensor: False,
    _aten.eq.Scalar: False,
    _aten.ne.Scalar: True,
}
"""What is so of finite numbers, compared with themselves, or with infinity."""


@dataclass(slots=True)
class Host:
    """Runs host operations for real if all inputs have data.

    Scripts count steps, divide batches and make device meshes with such tensors. One that is
    written from a tensor without data has none afterwards.
    """

    _unknown: Any = field(default_factory=WeakIdKeyDictionary)

    def runs(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether an operation is the host's, and all its inputs have data."""
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return False
        tensors = list(tensors_in((args, kwargs)))
        if not tensors:
            most = _MOST_INTEGERS if _makes_integers(func, args, kwargs) else MOST_ELEMENTS
            return _factory_elements(func, args, kwargs) <= most
        if all(map(self.is_known, tensors)):
            return True
        self.forget(_written_real(func, args, kwargs))
        return False

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has data."""
        return _has_data(tensor) and tensor.untyped_storage() not in self._unknown

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that tensors are written, and by what is not known."""
        for tensor in tensors:
            self._unknown[tensor.untyped_storage()] = True

    @staticmethod
    def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation with data, in memory that no driver pins."""
        unpinned = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        with unset_fake_temporarily():
            return func(*args, **unpinned)


@dataclass(slots=True)
class DeviceValues:
    """The values of device tensors that were copied from the host and not written since.

    What is computed from such tensors alone, as the number of labels that count, is known too.
    Numbers are taken for finite, other ranks' values for those of this rank, and each expert
    for the choice of as many tokens as any other.
    """

    host: Host = field(default_factory=Host)
    are_routed: bool = False
    _values: Any = field(default_factory=WeakIdKeyDictionary)
    _uniform: Any = field(default_factory=WeakIdKeyDictionary)

    def note(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        *,
        is_routing: bool = False,
    ) -> None:
        """Note a copy to the device, or that an operation writes one.

        With ``is_routing`` it chooses experts.
        """
        written = list(tensors_in(written_arguments(func, args, kwargs)))
        results = [each for each in tensors_in(result) if isinstance(each, FakeTensor)]
        elements = sum(each.numel() for each in results)
        if not results or func.is_view or elements > _MOST_COMPUTED:
            self.forget(written)
            return
        if func in _UNIFORM:
            given = named_arguments(func, args, kwargs)
            value = next((given[name] for name in _FILL_ARGUMENTS if name in given), _UNIFORM[func])
            with unset_fake_temporarily():
                filled = torch.full((), value, dtype=result.dtype)
            self._uniform[result.untyped_storage()] = filled
            return
        if self.decide(func, args, kwargs):
            computed = self.computed(func, args, kwargs)
            # In place, known values have changed with it.
            if not written:
                for each, value in zip(results, tensors_in(computed), strict=True):
                    self.put(each, value)
            return
        self.forget(written)
        if is_routing:
            self._route(args[0].shape, result[1])
        of_finite = _of_finite(func, args) if elements <= MOST_ELEMENTS else None
        if of_finite is not None:
            self.put(result, of_finite)

    def _route(self, scores: Sequence[int], chosen: Any) -> None:
        """Note that tokens, one after the other, are routed to all experts in turn."""
        experts, is_last = int(scores[-1]), chosen.shape[:-1] == scores[:-1]
        if experts > _MOST_EXPERTS or chosen.shape[-1] == experts or not is_last:
            return
        self.are_routed = True
        with unset_fake_temporarily():
            self.put(chosen, (torch.arange(chosen.numel()) % experts).view(chosen.shape))

    def put(self, tensor: Any, value: Any) -> None:
        """Note what a device tensor has."""
        with unset_fake_temporarily():
            on_host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            self._values[tensor.untyped_storage()] = on_host.copy_(torch.as_tensor(value))

    def scale(self, tensor: Any, known: Any, factor: int) -> None:
        """Note that a collective multiplied a tensor's known values by a factor."""
        with unset_fake_temporarily():
            self._note_written(tensor, known * factor)

    def repeat(self, tensor: Any, known: Any) -> None:
        """Note that a tensor has what is known of another one, as often as it fits."""
        with unset_fake_temporarily():
            times = tensor.numel() // known.numel()
            self._note_written(tensor, known.flatten().repeat(times).view(tensor.shape))

    def exchange(self, tensor: Any, known: Any, group: Any, splits: Sequence[int] | None) -> None:
        """Note that a tensor has what each rank of a group sends to this one."""
        sizes = list(splits or [len(known) // group.size()] * group.size())
        start = sum(sizes[: group.rank()])
        with unset_fake_temporarily():
            share = known[start : start + sizes[group.rank()]]
        self.repeat(tensor, share)

    def _note_written(self, tensor: Any, value: Any) -> None:
        if isinstance(tensor, FakeTensor):
            self.put(tensor, value)
        else:
            self.host.call(_aten.copy_.default, (tensor, value), {})

    def forget(self, written: Any) -> None:
        """Note that something writes tensors: their values are not known any more."""
        for tensor in tensors_in(written):
            if isinstance(tensor, FakeTensor):
                for known in (self._values, self._uniform):
                    known.pop(tensor.untyped_storage(), None)

    def decide(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the values that are known decide an operation's result."""
        if func in _RANGES:
            return _factory_elements(func, args, kwargs) <= _MOST_COMPUTED
        if torch.Tag.nondeterministic_seeded in func.tags or func.__name__.startswith(_UNREAD):
            return False
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU"):
            return False
        inputs = list(tensors_in((args, kwargs)))
        return bool(inputs) and all(map(self._is_known, inputs))

    def _is_known(self, tensor: torch.Tensor) -> bool:
        if not isinstance(tensor, FakeTensor):
            return self.host.is_known(tensor)
        storage = tensor.untyped_storage()
        is_small = tensor.numel() <= _MOST_FLOATS or not tensor.is_floating_point()
        return storage in self._values or (storage in self._uniform and is_small)

    def computed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute on the host what the device computes."""
        known, options = tree_map(self._on_host, (args, {**kwargs}))
        if options.get("device") is not None:
            options["device"] = torch.device("cpu")
        options.pop("pin_memory", None)
        with unset_fake_temporarily():
            try:
                return func(*known, **options)
            except NotImplementedError:
                # The host lacks some operations of integers, as counts in bins (histc).
                return func(*tree_map(_as_double, known), **options)

    def _on_host(self, value: Any) -> Any:
        """Return a tensor's values on the host; any values where they are not known."""
        known = self.of(value)
        if not isinstance(known, torch.Tensor) or _has_data(known):
            return known
        with unset_fake_temporarily():
            return torch.empty(known.shape, dtype=known.dtype)

    def known(self, tensor: Any) -> Any:
        """Return a whole storage's values, on the host; None if they are not known."""
        if torch.compiler.is_compiling():
            return None
        value = self.of(tensor)
        is_whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        return value if is_whole and self.host.is_known(value) else None

    def of(self, tensor: Any) -> Any:
        """Return a tensor's values on the host; the tensor itself if they are not known."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        storage = tensor.untyped_storage()
        filled = self._uniform.pop(storage, None)
        if filled is not None:
            with unset_fake_temporarily():
                self._values[storage] = filled.repeat(storage.nbytes() // filled.element_size())
        value = self._values.get(storage)
        if value is None:
            return tensor
        with unset_fake_temporarily():
            # A view may have another type than what was written.
            return torch.empty(0, dtype=tensor.dtype).set_(
                value.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
            )


def _as_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) else value


def copy_data() -> None:
    """Let ``copy.deepcopy`` copy tensors with data, also while torch compiles."""
    original = torch.Tensor.__deepcopy__

    def copied(tensor: Any, memo: dict[int, Any]) -> Any:
        is_plain = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        if not is_plain or tensor.device.type != "cpu":
            return original(tensor, memo)
        with unset_fake_temporarily():
            return original(tensor, memo)

    torch.Tensor.__deepcopy__ = copied


def _of_finite(func: Any, args: Sequence[Any]) -> bool | None:
    """Return what is so of finite numbers; None if that depends on them."""
    decided = _OF_FINITE.get(func)
    if decided is None or len(args) == 1:
        return decided
    left, right = args
    is_infinity = not isinstance(right, torch.Tensor) and right == inf
    return decided if left is right or is_infinity else None


class OnHost(TorchDispatchMode):
    """Lets operations read the values of device tensors, where these are known."""

    def __init__(self, values: DeviceValues) -> None:
        super().__init__()
        self._values = values

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call an operation with host tensors in the place of known ones."""
        del types
        args, kwargs = tree_map(self._values.of, (args, kwargs or {}))
        return func(*args, **kwargs)


def _has_data(tensor: torch.Tensor) -> bool:
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested values."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def _factory_elements(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return how many elements a factory operation makes, at least 1."""
    given = named_arguments(func, args, kwargs)
    size = given.get("size", getattr(given.get("self"), "shape", None))
    if isinstance(size, list | tuple):
        return _elements(size)
    return int(given.get("end", given.get("steps", given.get("n", 1))) or 1)


def _makes_integers(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a factory operation makes integers, which no model has for weights."""
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return not (dtype.is_floating_point or dtype.is_complex)
    is_of_integers = func.__name__.startswith(_OF_INTEGERS)
    return is_of_integers and not any(isinstance(value, float) for value in args)


def _elements(size: Sequence[int]) -> int:
    return prod(map(int, size))


def _written_real(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """Yield the tensors with data that an operation writes."""
    for tensor in tensors_in(written_arguments(func, args, kwargs)):
        if not isinstance(tensor, FakeTensor):
            yield tensor


def named_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation by name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def written_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes in place."""
    given = named_arguments(func, args, kwargs)
    return [
        given.get(argument.name)
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
