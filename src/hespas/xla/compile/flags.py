"""Ask a compiler which of XLA's flags it takes.

The module runs as a process of its own and answers a question (`hespas.base.question`). It needs no
device. A compiler checks flags only when it compiles, so it is given a program of one addition.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from hespas.base.question import serve
from hespas.xla.compile.messages import (
    Accelerator,
    FlagsAnswer,
    FlagsQuestion,
    GpuHosts,
    TpuSlice,
)
from hespas.xla.compile.prepare import prepare
from hespas.xla.compile.topology import TPU_GENERATIONS, open_topology
from hespas.xla.compile.worker import BAD_VALUE, NO_FLAG, compile_options

_PROGRAM = b"""module @probe {
  func.func @main(%x: tensor<f32>) -> tensor<f32> {
    %y = stablehlo.add %x, %x : tensor<f32>
    return %y : tensor<f32>
  }
}
"""


def check_flags(question: FlagsQuestion, _: Path) -> FlagsAnswer:
    """Try all flags at once, then one by one."""
    compiler = _Compiler(question.accelerator)
    flags = question.flags
    if compiler.refusal(flags) is None:
        return FlagsAnswer()
    refusals = {name: compiler.refusal({name: value}) for name, value in flags.items()}
    messages = {name: message for name, message in refusals.items() if message is not None}
    unknown = tuple(name for name, message in messages.items() if NO_FLAG.search(message))
    bad = tuple(name for name, message in messages.items() if BAD_VALUE.search(message))
    return FlagsAnswer(unknown=unknown, bad=bad)


class _Compiler:
    """The compiler of one chip of an accelerator."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._is_gpu = isinstance(accelerator, GpuHosts)
        self._count = 1
        if isinstance(accelerator, TpuSlice):
            generation = accelerator.generation
            self._count = TPU_GENERATIONS[generation].devices_per_chip
            accelerator = TpuSlice(generation=generation, topology=None)
        self._topology = open_topology(accelerator, count=self._count)

    def refusal(self, flags: Mapping[str, str]) -> str | None:
        """Return the compiler's error for flags, or None."""
        errors = import_module("jax.errors")
        internals = import_module("jaxlib._jax")
        prepared = prepare(
            _PROGRAM,
            name="probe",
            devices=self._count,
            partitions_as_replicas=not self._is_gpu,
        )
        devices = self._topology.devices
        # Flags that don't come by XLA_FLAGS: a GPU's compiler spells booleans as its protocol does.
        overrides = {
            name: {"true": "True", "false": "False"}.get(value, value) if self._is_gpu else value
            for name, value in flags.items()
        }
        options = compile_options(prepared, devices, overrides=overrides)
        try:
            self._topology.client.compile(
                prepared.module.handle, internals.DeviceList(devices), options
            )
        except errors.JaxRuntimeError as error:
            return str(error)
        return None


if __name__ == "__main__":
    serve(FlagsQuestion, check_flags)
