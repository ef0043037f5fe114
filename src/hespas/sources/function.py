"""Export a zoo model, a JAX function, or an artifact."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any

from hespas.base.suggest import suggestion
from hespas.errors import ExtraMissingError, HespasError, ProgramError
from hespas.models.catalogue import model_named
from hespas.models.model import Part
from hespas.sources.exported import Exported
from hespas.xla.mlir.module import (
    BYTECODE_MAGIC,
    MlirModule,
    declared_devices,
    parse_mlir,
    printed,
)
from hespas.xla.trial import check_bytecode

_FORM = "let it return (function, arguments) or a jax.stages.Lowered"
_IMPORTED = (
    "run hespas in the directory of the module, or install it: it is imported as Python would there"
)
_TORCH_FORM = "let it return (module, inputs) or (module, inputs, loss, targets), with tuples"
_LENGTH_BYTES = 4
_TORCH = "hespas.sources.torch_module"


def export_model(
    name: str, options: Mapping[str, str] | None = None, *, part: Part | None = None
) -> Exported:
    """Export a model's step or part.

    ``options`` change the model's settings, as text: ``{"mesh": "fsdp=8", "layers": "2"}``. Raises
    `ConfigError` for an unknown model or option, and for a mesh that does not fit.
    """
    model, settings = model_named(name), dict(options or {})
    step = model.step(settings) if part is None else model.part_step(settings, part)
    return export_function(step.function, *step.arguments, name=name, platform=step.platform)


def export_named(location: str, *, platform: str = "cpu") -> Exported:
    """Export what ``package.module:function`` returns when called without arguments.

    That is a function with a tuple of the arguments to lower it for (`jax.ShapeDtypeStruct`, with
    shardings where it runs on several devices), or a `jax.stages.Lowered`. A PyTorch module comes
    with a tuple of its inputs, and for a training step with its loss and a tuple of targets too, as
    `hespas.sources.torch_module.export_torch` takes them. Raises `ProgramError` if the module or
    function is missing, fails, or returns something else.
    """
    module_name, _, function_name = location.partition(":")
    try:
        function = _function(import_module(module_name), function_name, location)
        return _export_result(function(), location, platform)
    except HespasError:
        raise
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ExtraMissingError(location, extra="torch") from error
        is_it = error.name is not None and module_name.split(".")[0] == error.name.split(".")[0]
        raise ProgramError(
            f"{type(error).__name__}: {error}",
            location=location,
            hint=_IMPORTED if is_it else f"install {error.name}",
        ) from error
    except Exception as error:
        raise ProgramError(
            f"{type(error).__name__}: {error}", location=location, hint=_FORM
        ) from error


def _function(module: ModuleType, name: str, location: str) -> Any:
    function = getattr(module, name, None)
    if function is not None:
        return function
    defined = [
        defined_name
        for defined_name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__
    ]
    raise ProgramError(
        f"the module {module.__name__} has no {name!r}",
        location=location,
        hint=suggestion(name, defined) if defined else _FORM,
    )


def _export_result(result: Any, location: str, platform: str) -> Exported:
    torch: Any = import_module(_TORCH)
    match result:
        case (module, tuple() as inputs) if torch.is_torch_module(module):
            return torch.export_torch(module, inputs, name=location)
        case (module, tuple() as inputs, loss, tuple() as targets) if torch.is_torch_module(module):
            return torch.export_torch(module, inputs, loss=loss, targets=targets, name=location)
        case (module, *_) if torch.is_torch_module(module):
            raise ProgramError(
                "a PyTorch module without what it is to be called with",
                location=location,
                hint=_TORCH_FORM,
            )
        case (function, tuple() as arguments):
            return export_function(function, *arguments, name=location, platform=platform)
        case _ if hasattr(result, "as_text"):
            return export_lowered(result, name=location)
        case _:
            raise ProgramError(
                f"it returned a {type(result).__name__}", location=location, hint=_FORM
            )


def export_function(
    function: Any, *arguments: Any, name: str = "function", platform: str = "cpu"
) -> Exported:
    """Export a function for abstract arguments.

    The function may be jitted. Meshes may be abstract: the devices need not be attached.
    ``platform`` is the one that it is lowered for, if it calls what only that platform has (JAX's
    names: ``cpu``, ``cuda``, ``tpu``); a function that keeps arrays in a host's memory is lowered
    for TPUs instead of CPUs, for which JAX drops that.
    """
    jax = import_module("jax")
    jitted = function if hasattr(function, "trace") else jax.jit(function)
    with _abstract_mesh(arguments), _short_locations():
        traced = jitted.trace(*arguments)
        if platform == "cpu" and _uses_host_memory(traced.jaxpr.jaxpr, arguments):
            platform = "tpu"
        lowered = traced.lower(lowering_platforms=(platform,))
    return export_lowered(lowered, name=name)


def _uses_host_memory(jaxpr: Any, arguments: Any) -> bool:
    """Return whether arguments or results are in host memory."""
    jax = import_module("jax")
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments)]
    kinds = [getattr(sharding, "memory_kind", None) or "" for sharding in shardings]
    if any(kind.endswith("pinned_host") for kind in kinds):
        return True
    return any(
        equation.primitive.name == "device_put"
        and any("host" in str(target).lower() for target in equation.params["devices"])
        for equation in _equations(jaxpr)
    )


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and its inner ones."""
    for equation in jaxpr.eqns:
        yield equation
        for parameter in equation.params.values():
            members = parameter if isinstance(parameter, list | tuple) else (parameter,)
            for member in members:
                inner = getattr(member, "jaxpr", member)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


_LOCATIONS = {
    "jax_traceback_in_locations_limit": 1,
    "jax_hlo_source_file_canonicalization_regex": r"^.*/(site-packages|src)/(?=hespas/)",
}


@contextmanager
def _short_locations() -> Generator[None]:
    """Let JAX write the innermost locations alone.

    Files of hespas are named without the directory that it is installed in.
    """
    config = import_module("jax").config
    before = {name: getattr(config, name) for name in _LOCATIONS}
    try:
        for name, value in _LOCATIONS.items():
            config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            config.update(name, value)


def _abstract_mesh(arguments: Any) -> Any:
    """Return a context of the arguments' abstract mesh."""
    jax = import_module("jax")
    sharding = import_module("jax.sharding")
    for leaf in jax.tree.leaves(arguments):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if isinstance(mesh, sharding.AbstractMesh):
            return sharding.use_abstract_mesh(mesh)
    return nullcontext()


def export_lowered(lowered: Any, *, name: str = "lowered") -> Exported:
    """Export a `jax.stages.Lowered`, the result of ``jax.jit(f).lower(...)``."""
    module = MlirModule(handle=lowered.compiler_ir(), source=name)
    text = lowered.as_text(debug_info=True).encode()
    return Exported(content=text, name=name, devices=declared_devices(module))


def export_serialized(source: bytes, *, name: str) -> Exported:
    """Export the result of ``jax.export.export(f)(...).serialize()``.

    The artifact is a flatbuffer. The module is one of its vectors, whose length stands in front of
    it. Raises `ProgramError` for something else.
    """
    begin = source.find(BYTECODE_MAGIC)
    length = int.from_bytes(source[max(0, begin - _LENGTH_BYTES) : max(0, begin)], "little")
    if begin < _LENGTH_BYTES or begin + length > len(source):
        raise ProgramError("this is not what jax.export serialises", location=name)
    check_bytecode(source[begin : begin + length], name=name)
    module = parse_mlir(source[begin : begin + length], name=name)
    text = printed(module.handle, with_locations=True)
    return Exported(content=text, name=name, devices=declared_devices(module))
