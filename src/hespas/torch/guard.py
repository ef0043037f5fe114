"""Make a torch without an NVIDIA driver accept fake ``cuda`` tensors.

torch keeps a guard for each kind of device, which switches between devices. Where the guard for
CUDA says that it has no device, torch itself puts one that does nothing in its place
(``torch._C._ensureCUDADeviceGuardSet``); a CPU build has no guard at all, so that one is registered
that answers 0 to every question. The accelerator's hooks say whether torch was built for CUDA
(``isBuilt``) and whether a context exists (``hasPrimaryContext``): a copy of their table of
functions answers yes and no.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hespas.errors import ToolError

_POINTER = ctypes.c_void_p
_CUDA = 1
"""``c10::DeviceType::CUDA``."""
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_REGISTER = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
_IS_BUILT, _HAS_PRIMARY_CONTEXT = 2, 4
"""Positions in the table of ``at::AcceleratorHooksInterface``, after two destructors."""
_TABLE_SIZE = 64
"""More than any of these tables has: what follows in memory is copied and never called."""
_BEFORE_TABLE = 2
"""Pointers that stand before the first function of a table: an offset and the type."""
_OTHERS = ("MPS", "XPU", "HIP")


def install_fake_guard() -> None:
    """Make torch take CUDA for its accelerator, with devices that do nothing.

    Raises `ToolError` where this torch is built otherwise than the pinned one.
    """
    try:
        _set_guard()
        _set_hooks()
    except (AttributeError, ValueError, OSError) as error:
        raise ToolError(
            f"torch {torch.__version__} has other internals than hespas knows: {error}",
            hint="pip install 'hespas[torch]' has the version that it knows",
        ) from error
    accelerator = torch._C._accelerator_getAccelerator()
    if accelerator != torch.device("cuda"):
        raise ToolError(
            f"torch {torch.__version__} takes {accelerator} for its accelerator, not CUDA",
            hint="run where no other accelerator is attached",
        )


def _library(name: str) -> ctypes.CDLL:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return ctypes.CDLL(str(Path(str(torch.__file__)).parent / "lib" / f"lib{name}.{suffix}"))


def _set_guard() -> None:
    core = _library("c10")
    registry = (_POINTER * (_CUDA + 1)).in_dll(core, _REGISTRY)
    if registry[_CUDA]:
        torch._C._ensureCUDADeviceGuardSet()
        return
    answer_none = ctypes.CFUNCTYPE(ctypes.c_int64, _POINTER)(_zero)
    table = (_POINTER * 64)(*[ctypes.cast(answer_none, _POINTER).value] * 64)
    guard = (_POINTER * 1)(ctypes.addressof(table))
    register = getattr(core, _REGISTER)
    register.argtypes, register.restype = [ctypes.c_int8, _POINTER], None
    register(_CUDA, ctypes.addressof(guard))
    try:
        torch._C._ensureCUDADeviceGuardSet()
    finally:
        if registry[_CUDA] == ctypes.addressof(guard):
            # It must not stay: its memory is freed with this function's.
            register(_CUDA, None)
            raise AttributeError("torch sets no fake guard for CUDA")


def _zero(_guard: Any) -> int:
    return 0


def _set_hooks() -> None:
    backend = _library("torch_cpu")
    one = _address(ctypes.pythonapi, "Py_IsInitialized")
    zero = _address(ctypes.CDLL(None), "sched_yield")
    _replace(_hooks(backend, "CUDA"), {_IS_BUILT: one, _HAS_PRIMARY_CONTEXT: zero})
    for name in _OTHERS:
        _replace(_hooks(backend, name), {_IS_BUILT: zero})


def _hooks(backend: ctypes.CDLL, name: str) -> int:
    """Return the address of the hooks of a kind of device: ``at::detail::getNAMEHooks()``."""
    getter = getattr(backend, f"_ZN2at6detail{len(name) + 8}get{name}HooksEv")
    getter.restype = _POINTER
    return getter()


def _address(library: Any, name: str) -> int:
    address = ctypes.cast(getattr(library, name), _POINTER).value
    assert address is not None  # noqa: S101 - a function's address
    return address


def _replace(hooks: int, functions: Mapping[int, int]) -> None:
    """Give an object a virtual function table with some replacements."""
    pointer = ctypes.cast(hooks, ctypes.POINTER(_POINTER))
    old = ctypes.cast(pointer[0], ctypes.POINTER(_POINTER))
    size = _BEFORE_TABLE + _TABLE_SIZE
    table = (_POINTER * size)(*[old[position - _BEFORE_TABLE] for position in range(size)])
    for position, function in functions.items():
        table[position + _BEFORE_TABLE] = function
    # The object outlives Python: the table is never freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(table))
    pointer[0] = ctypes.addressof(table) + _BEFORE_TABLE * ctypes.sizeof(_POINTER)
