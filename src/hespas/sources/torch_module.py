"""Export a PyTorch module through torchax, without its weights."""

# Neither torch nor torchax need be installed, and JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any
from warnings import catch_warnings, filterwarnings

from hespas.base.frozen import frozen
from hespas.errors import ExtraMissingError, HespasError, ProgramError, UnsupportedError
from hespas.sources.exported import Exported
from hespas.sources.function import export_function

_WHAT = "exporting a PyTorch module"
_LEARNING_RATE = 0.01
# One operation for all random bits, as PyTorch has one kernel; JAX's default takes a hundred.
_GENERATOR = "rbg"
_SEED_SHAPE = (4,)


@frozen
class _Module:
    callee: Any
    environment: Any
    loss: Callable[..., Any] | None = None

    def __call__(self, parameters: Any, buffers: Any, seed: Any, data: Any) -> Any:
        """Return the output or loss, and written buffers."""
        environment = self.environment
        key = import_module("jax").random.wrap_key_data(seed, impl=_GENERATOR)
        weights, state, (inputs, targets) = environment.j2t_iso((parameters, buffers, data))
        with environment.override_property(prng=key), environment:
            output = self.callee.functional_call("forward", weights, state, *inputs)
            if self.loss is not None:
                output = self.loss(output, *targets)
        after = environment.t2j_iso(state)
        written = {name: after[name] for name in buffers if after[name] is not buffers[name]}
        return environment.t2j_iso(output), written


def export_torch(
    module: Any,
    inputs: tuple[Any, ...],
    *,
    loss: Callable[..., Any] | None = None,
    targets: tuple[Any, ...] = (),
    name: str = "module",
) -> Exported:
    """Export a module's forward pass or training step.

    ``inputs`` are example tensors, of which only shape and type count, as of the weights: both may
    be on torch's ``meta`` device. Other values among them are constants of the program. A step is
    ``loss(module(*inputs), *targets)``, its gradient by the parameters that require one, and plain
    SGD in place. The module's mode, training or evaluation, is kept.

    The program's arguments are the parameters and the buffers, each sorted by name, a seed of four
    32-bit integers, the inputs and the targets. Raises `ExtraMissingError` without torchax,
    `UnsupportedError` for an operation that torchax lacks, `ProgramError` if the module fails.
    """
    torchax = _load_torchax()
    callee = torchax.interop.JittableModule(module)
    if loss is None and targets:
        raise ProgramError("there are targets without a loss", location=name, hint="give one")
    if loss is not None and not callee.params:
        raise ProgramError("no parameter requires a gradient", location=name, hint="drop the loss")
    run = _Module(callee=callee, environment=_environment(torchax), loss=loss)
    # Elsewhere in this process JAX may have 64-bit types; here the program never depends on it.
    with import_module("jax").enable_x64(False), _failures(torchax, name):
        exported = _export_module(run, (tuple(inputs), tuple(targets)), name=name)
    leaves = import_module("jax").tree.leaves((inputs, targets))
    return replace(exported, notes=(*exported.notes, *_notes(callee, leaves, loss)))


def _export_module(run: _Module, data: Any, *, name: str) -> Exported:
    jax = import_module("jax")
    leaves, structure = jax.tree.flatten(data)
    positions = [position for position, leaf in enumerate(leaves) if _is_tensor(leaf)]
    parameters, buffers, tensors = _abstract(
        (run.callee.params, run.callee.buffers, [leaves[position] for position in positions])
    )

    def main(parameters: Any, buffers: Any, seed: Any, tensors: Any) -> Any:
        filled = list(leaves)
        for position, value in zip(positions, tensors, strict=True):
            filled[position] = value
        filled_data = jax.tree.unflatten(structure, filled)
        if run.loss is None:
            return run(parameters, buffers, seed, filled_data)
        return _step(run, parameters, buffers, seed, filled_data)

    # A step replaces its parameters and buffers.
    donated = () if run.loss is None else (0, 1)
    jitted = jax.jit(main, keep_unused=True, donate_argnums=donated)
    seed = jax.ShapeDtypeStruct(_SEED_SHAPE, "uint32")
    return export_function(jitted, parameters, buffers, seed, tensors, name=name)


def _environment(torchax: Any) -> Any:
    torch = import_module("torch")
    environment = torchax.tensor.Environment()
    original = environment.dispatch

    def dispatch(*arguments: Any) -> Any:
        # torchax would compute under autocast in the wide type.
        if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
            raise UnsupportedError(
                "torchax has no torch.autocast",
                hint="convert the module: module.to(torch.bfloat16)",
            )
        return original(*arguments)

    environment.dispatch = dispatch
    return environment


def is_torch_module(value: Any) -> bool:
    """Return whether a value is a `torch.nn.Module`."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, import_module("torch").Tensor)


def _step(run: _Module, parameters: Any, buffers: Any, seed: Any, data: Any) -> Any:
    jax = import_module("jax")
    of_parameters = partial(run, buffers=buffers, seed=seed, data=data)
    (loss, written), slopes = jax.value_and_grad(of_parameters, has_aux=True)(parameters)
    updated = {name: value - _LEARNING_RATE * slopes[name] for name, value in parameters.items()}
    return loss, updated, {**buffers, **written}


def _abstract(tensors: Any) -> Any:
    """Return JAX's shapes and types: 64-bit types become 32-bit ones."""
    jax = import_module("jax")
    mappings = import_module("torchax.ops.mappings")

    def shaped(tensor: Any) -> Any:
        dtype = jax.dtypes.canonicalize_dtype(mappings.t2j_dtype(tensor.dtype))
        return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype)

    return jax.tree.map(shaped, tensors)


def _notes(callee: Any, leaves: list[Any], loss: Any) -> Iterator[str]:
    tensors = (*callee.params.values(), *callee.buffers.values(), *filter(_is_tensor, leaves))
    wide = sorted({str(t.dtype).removeprefix("torch.") for t in tensors if t.dtype.itemsize == 8})
    if wide:
        yield f"{' and '.join(wide)} of the PyTorch module are 32 bits wide, as JAX has them"
    if loss is not None:
        yield f"the optimiser is plain SGD, with a learning rate of {_LEARNING_RATE}"


@contextmanager
def _failures(torchax: Any, name: str) -> Generator[None]:
    """Turn errors while a module is traced into hespas' errors."""
    try:
        with catch_warnings():
            # Without a GPU torch leaves out a GPU's autocast, and only warns.
            filterwarnings("error", message=".*Disabling autocast")
            yield
    except HespasError as error:
        error.location = error.location or name
        raise
    except torchax.tensor.OperatorNotFound as error:
        raise UnsupportedError(f"torchax: {error}", location=name) from error
    except Exception as error:
        raise ProgramError(f"{type(error).__name__}: {error}", location=name) from error


def _load_torchax() -> Any:
    """Load torchax.

    torchax asks for them while it loads, and torch 2.13 lacks them. Placeholders that nothing calls
    replace them.
    """
    try:
        packet: Any = import_module("torch._ops").OpOverloadPacket
        original = packet.__getattr__

        def tolerant(self: Any, key: str) -> Any:
            try:
                return original(self, key)
            except AttributeError:
                if "name" not in key.lower() or key.startswith("_"):
                    raise
                return object()

        packet.__getattr__ = tolerant
        try:
            torchax = import_module("torchax")
            import_module("torchax.interop")
            torchax.tensor.Environment()  # Decompositions load with the first one.
        finally:
            packet.__getattr__ = original
    except ModuleNotFoundError as error:
        raise ExtraMissingError(_WHAT, extra="torch") from error
    return torchax
