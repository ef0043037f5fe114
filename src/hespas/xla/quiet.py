"""Start JAX on the CPU alone, without what accelerators' plugins print where there is none."""

from __future__ import annotations

import logging
import os

_PLUGINS = ("jax_plugins", "jax._src.xla_bridge")


def use_cpu(devices: int | None = None) -> None:
    """Tell JAX, before it is imported, to leave accelerators alone.

    ``devices`` is how many devices the CPU is to look like. Does nothing to a JAX that has
    started already.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in _PLUGINS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if devices is not None:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"
