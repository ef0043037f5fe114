"""The user's function: found, given its arguments, and called for its step."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, HespasError, ProgramError, UnsupportedError, option

_FORM = (
    "let it return a function without arguments that runs one step, or run a loop with an optimizer"
)
NO_DATA = "leave it out of the step that hespas runs: shapes must not depend on data"
_READS_VALUES = "the step reads a tensor's values, and tensors have no data here"
OF_SPARSE = (
    "sparse tensors are not recorded",
    "multiply by rows: index_add_ of x[source] at target, or take dense tensors",
)
_KNOWN = {
    "passed to FakeTensor.__format__": (_READS_VALUES, NO_DATA),
    "UnknownNumber": (_READS_VALUES, NO_DATA),
    "_split_sizes must be int": (
        "how many rows a message has depends on tensors without data",
        "send equal parts: the same number of tokens to each expert",
    ),
    ".numpy() is not supported for tensor subclasses": (_READS_VALUES, NO_DATA),
    "no fake impl registered": (
        "an operation of an extension does not say which shapes it returns",
        "register that with torch.library.register_fake",
    ),
    "shape_env must not be None": (
        "nested tensors of different lengths are not recorded",
        "pad them, or pack them into one sequence with a mask of flex_attention",
    ),
    "SparseTensorImpl": OF_SPARSE,
    "SparseCsrTensorImpl": OF_SPARSE,
    "Error building extension": (
        "an extension cannot be built here",
        "call torch's operations in its place, or build it where hespas is",
    ),
}
"""What torch says of things that need data or a GPU, in our words, with a hint."""
_OF_CUDA = {"transformer_engine", "apex", "amp_C", "flash_attn", "flash_attn_interface", "deep_ep"}
"""Packages whose operations run on GPUs alone."""
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def load_function(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a file or module; `ProgramError` without one."""
    loaded = _file_module(module) if module.endswith(".py") else import_module(module)
    function = getattr(loaded, name, None)
    if callable(function):
        return function
    known = [
        key
        for key, value in vars(loaded).items()
        if inspect.isfunction(value) and value.__module__ == loaded.__name__
    ]
    raise ProgramError(
        f"there is no function {name!r}",
        location=module,
        hint=suggestion(name, known) if known else _FORM,
    )


def _file_module(file: str) -> types.ModuleType:
    path = Path(file)
    spec = spec_from_file_location(path.stem, path.resolve())
    if not path.is_file() or spec is None or spec.loader is None:
        raise ProgramError("no such file", location=file, hint="check the path")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def read_arguments(
    function: Callable[..., Any], texts: Mapping[str, str], *, location: str
) -> dict[str, Any]:
    """Return a function's arguments from text, by the types of its parameters.

    Raises `ConfigError` for a name that it lacks, a value of another type, and one that is missing.
    """
    parameters = inspect.signature(function).parameters
    for name in texts:
        if name not in parameters:
            hint = suggestion(name, list(parameters)) if parameters else "it takes none"
            raise ConfigError(
                f"the function has no argument {name!r}", location=location, hint=hint
            )
    for name, parameter in parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind not in {
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        }
        if is_needed and name not in texts:
            raise ConfigError(
                f"the function's argument {name!r} has no value",
                location=location,
                hint=f"give {option('set')} {name}=VALUE",
            )
    hints = _hints(function)
    return {
        name: _read(text, _kind(hints.get(name), parameters[name].default), name, location)
        for name, text in texts.items()
    }


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        # Types that are imported for type checkers alone.
        return {}


def _kind(annotation: Any, default: Any) -> Any:
    """Return a parameter's type: as it is annotated, or else that of its default."""
    if annotation is not None:
        return annotation
    has_type = default is not inspect.Parameter.empty and default is not None
    return cast("type", type(default)) if has_type else str


def _read(text: str, kind: Any, name: str, location: str) -> Any:
    members = get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)
    if types.NoneType in members and text.lower() == "none":
        return None
    for member in members:
        value = _value(text, member)
        if value is not None:
            return value
    shown = " or ".join(getattr(member, "__name__", str(member)) for member in members)
    raise ConfigError(
        f"{name} is {text!r}, and the function takes {shown}",
        location=location,
        hint=f"give {option('set')} {name}=VALUE of that type",
    )


def _value(text: str, kind: Any) -> Any:
    """Parse a text as a value of a type; None if it isn't."""
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == text), None)
    if kind is bool:
        return True if text.lower() in _TRUE else False if text.lower() in _FALSE else None
    if kind is str:
        return text
    if kind not in {int, float}:
        return None
    try:
        return kind(text)
    except ValueError:
        return None


def step_of(made: Any, *, has_begun: bool, location: str) -> Callable[[], Any]:
    """Return the step that a program made; `ProgramError` if it ended without one.

    With ``has_begun`` it has run the first step of a loop.
    """
    if callable(made):
        return made
    if has_begun:
        raise ProgramError(
            "the program ended after the first step of its loop, and the second is recorded",
            location=location,
            hint="let it run two steps or more",
        )
    if location.endswith(".py"):
        raise ProgramError(
            "the script ended, and no optimizer made a step",
            location=location,
            hint=f"let it run a training loop, or name a function: {location}:FUNCTION",
        )
    raise ProgramError(
        f"the function returned {_described(made)}, and no step", location=location, hint=_FORM
    )


def _described(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def in_words(error: BaseException, line: str, *, location: str) -> HespasError:
    """Return a user program's error as one of ours, with its line."""
    where = line or location
    if isinstance(error, HespasError):
        error.location = error.location or where
        return error
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in _OF_CUDA:
        return UnsupportedError(
            f"{error.name} has kernels that are compiled for CUDA, and none of them runs here",
            location=where,
            hint="take layers of torch in its place, as Megatron core's local ones",
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        return ProgramError(
            f"the module {error.name} is not installed",
            location=where,
            hint=f"install it where hespas is, for {sys.executable}",
        )
    if isinstance(error, SystemExit):
        reason = f": {error.code}" if isinstance(error.code, str) else ""
        return ProgramError(
            f"the program ends the process before its second step{reason}", location=where
        )
    text = " ".join(str(error).split()) or "no message"
    for fragment, (message, hint) in _KNOWN.items():
        if fragment in text:
            return UnsupportedError(message, location=where, hint=hint)
    return ProgramError(f"{type(error).__name__}: {text[:400]}", location=where)
