"""A model of the zoo: settings, and a step; meshes, and parts of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

from hespas.base.frozen import frozen
from hespas.base.suggest import other_names, own_name, suggestion
from hespas.errors import ConfigError, refuse
from hespas.models.kernels import FUSED
from hespas.models.quantization import FORMATS

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh

_CUT = "hespas.models.steps.training"
"""Where steps are built that can be cut between layers."""
_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*")
PIPE = "pipe"
"""The axis of a mesh along which the stages of a pipeline stand."""
EXPERT = "expert"
"""The axis of a mesh that experts are divided over."""
REDUCED = ("data", "fsdp")
"""The axes of a mesh whose devices compute different sequences with the same weights."""
SHARED = ("fsdp", "context")
"""Those of the axes with equal weights over which gradients and optimiser states are divided."""


@frozen
class MeshAxes:
    """Named axes of a mesh, with sizes."""

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        refuse(len(set(names)) < len(names), f"mesh {self} names an axis twice")
        for name, size in self.axes:
            refuse(size < 1, f"mesh axis {name} is {size}", "give 1 or more")

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @property
    def device_count(self) -> int:
        """The product of the axis sizes."""
        return prod(size for _, size in self.axes)

    def size(self, *names: str) -> int:
        """Return the product of these axes' sizes."""
        sizes = dict(self.axes)
        return prod(sizes.get(name, 1) for name in names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(name for name, _ in self.axes)

    def present(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of ``axes`` that the mesh has."""
        return tuple(axis for axis in axes if axis in self.names)

    def abstract(self) -> AbstractMesh:
        """Return the mesh as JAX takes it, without devices."""
        from jax.sharding import AbstractMesh, AxisType  # noqa: PLC0415 - JAX is slow to import

        sizes = tuple(size for _, size in self.axes)
        names = tuple(name for name, _ in self.axes)
        return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def parse_mesh(text: str) -> MeshAxes:
    """Read a mesh; `ConfigError` if the text is none.

    >>> parse_mesh("data=2,fsdp=4").device_count
    8
    """
    matches = [_AXIS.fullmatch(part) for part in text.split(",")]
    refuse(not all(matches), f"mesh {text!r} is not AXIS=SIZE,..", "write it as in fsdp=4,tp=2")
    return MeshAxes(axes=tuple((match[1], int(match[2])) for match in matches if match))


class PartProgram(Enum):
    """A program of a part.

    ``BOTH`` is the forward and the backward pass of one micro-batch; ``INPUTS`` the same without
    the gradients of weights; ``UPDATE`` the optimiser's step.
    """

    BOTH = "both"
    INPUTS = "inputs"
    UPDATE = "update"


@frozen
class Part:
    """Some layers of a model, with embedding or head.

    ``mesh`` has the axes that divide the program's arrays: every stage, and each data-parallel part
    of it, runs such a program at the same time. Parts that are equal have equal programs: ``first``
    is where layers of the same kinds stand first in the model.
    """

    mesh: MeshAxes
    layers: int
    first: int = 0
    is_first: bool = False
    is_last: bool = False
    program: PartProgram = PartProgram.BOTH

    def __str__(self) -> str:
        parts = [f"{self.layers} layers" if self.layers != 1 else "1 layer"]
        if self.is_first:
            parts.insert(0, "embedding")
        if self.is_last:
            parts.append("head and loss")
        return ", ".join(parts)


def check_division(
    mesh: MeshAxes, sizes: Mapping[str, int], axes: Mapping[str, tuple[str, ...]]
) -> None:
    """Raise `ConfigError` for an axis that divides no dimension.

    ``sizes`` are those of named dimensions, ``axes`` the mesh axes that divide a dimension.
    """
    dividing = {axis for divisors in axes.values() for axis in divisors}
    for axis, _ in mesh.axes:
        if axis not in dividing:
            own = own_name("axes", axis)
            hint = suggestion(axis, dividing) if own is None else f"that axis is {own} here"
            raise ConfigError(f"mesh axis {axis} divides nothing in this model", hint=hint)
    for dimension, divisors in axes.items():
        parts = mesh.size(*divisors)
        if sizes.get(dimension, parts) % parts:
            present = mesh.present(divisors)
            divisor = ",".join(f"{axis}={mesh.size(axis)}" for axis in present)
            raise ConfigError(
                f"{dimension} = {sizes[dimension]} cannot be divided by {divisor} of the mesh",
                hint=f"choose a mesh whose {' x '.join(present)} divides it",
            )


_MOST = 2**31 - 1
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act")
"""What a step may compute again of a layer, one or several joined by ``+``.

Source: megatron-core 0.16.1, ``recompute_modules`` of transformer/transformer_config.py."""
LORA_MODULES = ("linear_fc1", "linear_fc2", "linear_proj", "linear_qkv")
"""What can have adapters in a layer, one or several joined by ``+``.

Source: Megatron-Bridge 0.6.2, ``target_modules`` of peft/lora.py."""
_JOINED = {"remat": MODULES, "lora_modules": LORA_MODULES}
"""The settings whose values may be several, joined by ``+``."""
_LEAST = {"lora_rank": 1, "document_length": 1}
"""The least value of settings that stand for nothing where they are not given."""

CHOICES = {
    "attention": ("auto", "unfused", *FUSED),
    "context_attention": ("gather", "ring"),
    "cache_dtype": ("bf16", "f16", "f32", "f8"),
    "dtype": ("bf16", "f16", "f32"),
    "product_dtype": ("same", "f8", "f4"),
    "expert_product_dtype": ("same", "f8", "f4"),
    "state_dtype": ("bf16", "f16", "f32"),
    "gradient_dtype": ("same", "bf16", "f16", "f32"),
    "weight_dtype": tuple(FORMATS),
    "attention_dtype": ("same", *FORMATS),
    "expert_dtype": ("same", *FORMATS),
    "activation_dtype": ("auto", "same", "nvfp4"),
    "remat": (
        *("minimal_with_context", "offload", "full", "whole"),
        *("alternate_products", "core_attention", "elementwise", "none"),
        *MODULES,
    ),
    "exchange_dtype": ("same", "f8"),
    "dispatcher": ("fused", "alltoall"),
    "expert_axes": ("expert", "tp", "expert+tp", "expert+context", "expert+context+tp"),
    "gate": ("softmax", "sigmoid"),
    "loss": ("fused", "eager"),
    "expert_kernels": ("fused", "eager"),
    "rotary_kernels": ("fused", "eager"),
    "embedding_lookup": ("auto", "rows", "product"),
    "same_rows": ("auto", "joined", "apart"),
    "lora_modules": ("all", *LORA_MODULES),
    "stage": ("whole", "first", "middle", "last"),
    "divided": ("rows", "columns", "contracting", "scattered"),
}
"""The values of the settings that have only a few."""
TYPE_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
"""The size of an element of the types that weights and states have."""
_OPTION_TYPES = (bool, int, str, MeshAxes)
"""The types of settings that are options; a dataclass is a part of settings,
whose fields are options too unless it has ``IS_FIXED``."""
_YES_NO = {"true": True, "yes": True, "false": False, "no": False}


@frozen
class Step:
    """A function from ``jax.jit``, with abstract arguments.

    ``platform`` is what it is lowered for, by JAX's name.
    """

    function: Any
    arguments: tuple[Any, ...]
    mesh: MeshAxes
    platform: str = "cpu"

    def argument_bytes(self, number: int) -> int:
        """Return the bytes that one device holds of an argument."""
        from jax.tree import leaves  # noqa: PLC0415 - JAX is slow to import

        return sum(
            prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in leaves(self.arguments[number])
        )


@frozen
class Model:
    """A named model; the fields of ``settings`` are its options.

    ``module`` of settings is where the function ``build`` stands that makes a `Step` of them: it is
    imported with JAX, when it is called. If the model can be cut between layers, the function
    ``build_part`` stands there, too, and makes a `Step` of a `Part`. ``notes`` name the parts of
    the model that steps leave out.
    """

    name: str
    summary: str
    settings: Any
    notes: tuple[str, ...] = ()

    @property
    def can_be_cut(self) -> bool:
        """Whether it can be cut between layers."""
        return self.settings.module == _CUT

    @property
    def axes(self) -> list[str]:
        """The mesh axes that divide it, by default its mesh's."""
        divided = getattr(self.settings, "axes", {}).values()
        names = list(dict.fromkeys(axis for axes in divided for axis in axes))
        return names or list(self.settings.mesh.names)

    def options(self) -> dict[str, object]:
        """Return the options with their default values."""
        return _options(self.settings)

    def with_options(self, texts: Mapping[str, str]) -> Any:
        """Return the settings with options changed, given as text.

        Raises `ConfigError` for unknown options, and for values that are none.
        """
        options = self.options()
        changed: dict[str, object] = {}
        for name, text in texts.items():
            if name not in options:
                raise ConfigError(
                    f"{self.name} has no option {name!r}", hint=_setting_hint(name, options)
                )
            changed[name] = _value(name, text, options[name])
        return _with_changes(self.settings, changed)

    def step(self, texts: Mapping[str, str]) -> Step:
        """Return the step with options changed, given as text.

        Raises `ConfigError` for unknown options, and for values that do not fit.
        """
        build: Callable[[Any], Step] = import_module(self.settings.module).build
        return build(self.with_options(texts))

    def part_step(self, texts: Mapping[str, str], part: Part) -> Step:
        """Return a part's program with options changed, given as text.

        Raises `ConfigError` as `step` does, and for a model that can't be cut.
        """
        refuse(not self.can_be_cut, f"{self.name} cannot be cut between layers", "drop pipe")
        build: Callable[[Any, Part], Step] = import_module(self.settings.module).build_part
        return build(self.with_options(texts), part)


def _setting_hint(name: str, options: Mapping[str, object]) -> str:
    synonyms = other_names()["settings"].items()
    own = [setting for setting, names in synonyms if name in names and setting in options]
    return f"that is {own[0]} here" if own else suggestion(name, options)


def _options(settings: Any) -> dict[str, object]:
    options: dict[str, object] = {}
    for name, value in _values(settings).items():
        if isinstance(value, _OPTION_TYPES):
            options[name] = value
        elif _is_part(value):
            options |= _options(value)
    return options


def _with_changes(settings: Any, changed: Mapping[str, object]) -> Any:
    """Return settings with options changed, also in their parts."""
    new: dict[str, object] = {}
    for name, value in _values(settings).items():
        if isinstance(value, _OPTION_TYPES):
            new[name] = changed.get(name, value)
        elif _is_part(value):
            new[name] = _with_changes(value, changed)
    return replace(settings, **new)


def _is_part(value: object) -> bool:
    return is_dataclass(value) and not getattr(value, "IS_FIXED", False)


def _values(settings: Any) -> dict[str, object]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def _value(name: str, text: str, default: object) -> object:
    """Read an option as the type that its default has."""
    match default:
        case MeshAxes():
            return parse_mesh(text)
        case bool():
            refuse(text.lower() not in _YES_NO, f"{name} is {text!r}", "give true or false")
            return _YES_NO[text.lower()]
        case int():
            least = _LEAST.get(name, min(1, default))
            refuse(
                not text.isdecimal() or int(text) < least,
                f"{name} is {text!r}",
                f"give a whole number of {least} or more",
            )
            refuse(
                int(text) > _MOST,
                f"{name} is {text}, which no 32-bit index counts",
                f"give {_MOST} or less",
            )
            return int(text)
        case _ if name in _JOINED and "+" in text:
            modules = _JOINED[name]
            return "+".join(sorted({one_of(name, part, modules) for part in text.split("+")}))
        case _ if name in CHOICES:
            return one_of(name, _spelled(text, CHOICES[name]), CHOICES[name])
        case _:
            return text


def _spelled(text: str, choices: tuple[str, ...]) -> str:
    own = own_name("types", text) or text
    return own if own in choices and text not in choices else text


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return a value that is known; raise `ConfigError` otherwise."""
    refuse(value not in choices, f"{name} is {value!r}", f"known: {', '.join(choices)}")
    return value
