"""Start JAX on the CPU alone, without plugins' output."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.util import find_spec

_PLUGINS = ("jax_plugins", "jax._src.xla_bridge")


def use_cpu(devices: int | None = None) -> None:
    """Make JAX use the CPU alone.

    ``devices`` is the number of virtual devices. It has no effect on a JAX that was imported
    before.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in _PLUGINS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if devices is not None:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"
    if find_spec("jax_plugins") is not None:
        _start()


def _start() -> None:
    """Start JAX with standard error closed.

    The plugins' libraries print when they are loaded.
    """
    saved = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        import_module("jax").devices("cpu")
    finally:
        os.dup2(saved, 2)
        os.close(null)
        os.close(saved)
