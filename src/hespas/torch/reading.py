"""What scripts read from the device: numbers that nothing may follow from."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import currentframe
from json import JSONEncoder
from typing import Any
from unittest.mock import patch

import numpy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from hespas.torch.host import MOST_ELEMENTS, DeviceValues, tensors_in
from hespas.torch.loop import Loop
from hespas.torch.places import Places
from hespas.torch.recorder import is_compiling
from hespas.torch.unknown import UnknownNumber, ValueUnknownError, is_shown, refuse

_OF_FINITE = {"isfinite": True, "isnan": False, "isinf": False}
"""What functions of `math` answer of finite numbers."""
_OF_NUMBERS = ("exp", "expm1", "log", "log2", "log10", "log1p", "pow", "sqrt", "fabs")
"""Functions of `math` whose results are as unknown as their arguments."""


@dataclass(slots=True)
class Reader:
    """Makes numbers that a script reads, and notes what it does with them.

    In the recorded step they decide nothing; before it, comparisons are taken for false. A
    ``float`` of one is ``nan``.
    """

    loop: Loop
    places: Places
    values: DeviceValues
    compared: dict[str, None] = field(default_factory=dict[str, None])
    converted: dict[str, None] = field(default_factory=dict[str, None])
    saved: dict[str, None] = field(default_factory=dict[str, None])

    def decide(self, line: str) -> bool:
        """Return what a comparison is taken for; refuse one in the recorded step."""
        if self.loop.has_begun:
            refuse(line, self.places.line())
        self.compared[self.places.line()] = None
        return False

    def convert(self, line: str) -> float:
        """Return what stands for a ``float``."""
        del line
        self.converted[self.places.line()] = None
        return math.nan

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operation of torch; what it makes or writes is not known."""
        known_args, known_kwargs = tree_map(_stand_in, (tuple(args), dict(kwargs)))
        result = func(*known_args, **known_kwargs)
        name = getattr(func, "__name__", "")
        written = args[0] if name.endswith("_") else ()
        self.forget(tensors_in((result, written, kwargs.get("out"))))
        return result

    def forget(self, tensors: Iterator[torch.Tensor]) -> None:
        """Note that values of tensors are not known."""
        for tensor in tensors:
            if isinstance(tensor, FakeTensor):
                self.values.forget(tensor)
            else:
                self.values.host.forget([tensor])

    def is_left_to_torch(self, tensor: torch.Tensor) -> bool:
        """Return whether torch itself reads a tensor, which has data, or refuses it."""
        is_read = self.values.host.is_known(tensor) or tensor.device.type != "cpu"
        return is_read or tensor.numel() > MOST_ELEMENTS

    def number(self, tensor: torch.Tensor) -> UnknownNumber:
        """Return what a script reads from a tensor of one element."""
        kind = 1.0 if tensor.is_floating_point() else 1
        return UnknownNumber(self.places.line(), self, kind)

    def notes(self) -> Iterator[str]:
        """Yield what is otherwise than in a run on GPUs."""
        for what, lines in (
            ("before the step, comparisons of the device's numbers are false", self.compared),
            ("float() of the device's numbers is nan, which compares false", self.converted),
            ("torch.save writes no file and takes no time", self.saved),
        ):
            if lines:
                yield f"program: {what} ({', '.join(lines)})"


@contextmanager
def unknown_numbers(reader: Reader) -> Generator[None]:
    """Let a script read numbers of the device: each is an `UnknownNumber`."""
    tensors: Any = torch.Tensor
    with (
        patch.multiple(tensors, **_shown(tensors), **_read(tensors, reader)),
        patch.multiple(torch, **_of_torch(reader)),
        patch.multiple(math, **_of_math()),
        patch.object(JSONEncoder, "default", _in_json(JSONEncoder.default)),
    ):
        yield


def _read(tensors: Any, reader: Reader) -> dict[str, Any]:
    """Return functions that read a tensor's values."""
    item, is_true, as_float, as_array, as_list = (
        getattr(tensors, name) for name in ("item", "__bool__", "__float__", "numpy", "tolist")
    )

    def read(tensor: torch.Tensor) -> Any:
        try:
            return item(tensor)
        except ValueUnknownError:
            return reader.number(tensor)

    def decided(tensor: torch.Tensor) -> bool:
        return bool(tensor.item()) if _is_number(tensor) else is_true(tensor)

    def number(tensor: torch.Tensor) -> float:
        if not _is_number(tensor):
            return as_float(tensor)
        value = tensor.item()
        return math.nan if is_shown(currentframe()) else float(value)

    def array(tensor: torch.Tensor, **options: Any) -> Any:
        if reader.is_left_to_torch(tensor):
            return as_array(tensor, **options)
        return numpy.full(tuple(tensor.shape), reader.number(tensor), dtype=object)

    def listed(tensor: torch.Tensor) -> Any:
        return as_list(tensor) if reader.is_left_to_torch(tensor) else array(tensor).tolist()

    return {
        "item": read,
        "__bool__": decided,
        "__float__": number,
        "numpy": array,
        "tolist": listed,
    }


def _shown(tensors: Any) -> dict[str, Any]:
    """Return functions that write a tensor as text."""
    form, shown = tensors.__format__, tensors.__repr__

    def formatted(tensor: torch.Tensor, spec: str) -> str:
        return format(tensor.item(), spec) if _is_number(tensor) else form(tensor, spec)

    def text(tensor: torch.Tensor, **options: Any) -> str:
        return f"tensor({tensor.item()})" if _is_number(tensor) else shown(tensor, **options)

    return {"__format__": formatted, "__repr__": text}


def _of_torch(reader: Reader) -> dict[str, Any]:
    """Return functions that make tensors of numbers, or write them to files."""

    def making(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(data: Any, **options: Any) -> Any:
            leaves = () if isinstance(data, torch.Tensor) else tree_leaves(data)
            if not any(isinstance(leaf, UnknownNumber | FakeTensor) for leaf in leaves):
                return make(data, **options)
            return reader.call(make, (tree_map(_number_of, data),), options)

        return made

    def save(*_arguments: Any, **_options: Any) -> None:
        reader.saved[reader.places.line()] = None

    return {
        "tensor": making(torch.tensor),
        "as_tensor": making(torch.as_tensor),
        "save": save,
    }


def _of_math() -> dict[str, Any]:
    """Return functions of `math` that take unknown numbers."""

    def answering(test: Callable[[Any], bool], *, answer: bool) -> Callable[[Any], bool]:
        return lambda number: answer if isinstance(number, UnknownNumber) else test(number)

    def computing(compute: Callable[..., float]) -> Callable[..., Any]:
        return lambda number, *others: (
            number if isinstance(number, UnknownNumber) else compute(number, *others)
        )

    tests = {
        name: answering(getattr(math, name), answer=answer) for name, answer in _OF_FINITE.items()
    }
    return {**tests, **{name: computing(getattr(math, name)) for name in _OF_NUMBERS}}


def _in_json(default: Callable[..., Any]) -> Callable[..., Any]:
    """Return what writes unknown numbers, as of a log, as null."""
    return lambda encoder, value: (
        None if isinstance(value, UnknownNumber) else default(encoder, value)
    )


def _is_number(tensor: torch.Tensor) -> bool:
    """Return whether a program reads a number; what compiles shows tensors without numbers."""
    return isinstance(tensor, FakeTensor) and tensor.dim() == 0 and not is_compiling()


def _number_of(value: Any) -> Any:
    return value.item() if isinstance(value, FakeTensor) else value


def _stand_in(value: Any) -> Any:
    return value.kind if isinstance(value, UnknownNumber) else value
