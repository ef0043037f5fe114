"""Compile and time StableHLO modules through PJRT.

The process answers questions. A question names a file and says how to run it; an answer holds the
times in seconds, or an error. Run as ``python -m hespas.xla.run.worker PLATFORM``.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from hespas.base.question import answer_lines

EMPTY_MODULE = "func.func @main() { return }"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A module to time, or none for the dispatch floor.

    ``arguments`` are those of its main function, each a shape and numpy's name of an element type.
    It runs ``warm_up_runs`` times uncounted; then ``least_runs`` times, and on up to ``most_runs``
    until ``enough_s`` have passed.
    """

    module: str
    arguments: tuple[tuple[tuple[int, ...], str], ...] = ()
    warm_up_runs: int
    least_runs: int
    most_runs: int
    enough_s: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of the counted runs, in order, or an error.

    ``lacks_platform`` is True if the platform has no device to run modules on.
    """

    durations_s: tuple[float, ...] = ()
    compile_s: float = 0.0
    device: str = ""
    error: str = ""
    lacks_platform: bool = False


def _answered(line: bytes) -> bytes:
    question = msgspec.json.decode(line, type=Question)
    return msgspec.json.encode(_answer(sys.argv[1], question))


def _answer(platform: str, question: Question) -> Answer:
    try:
        client = _client(platform)
    except Exception as error:  # noqa: BLE001 - any error is the answer
        return Answer(error=_first_line(error), lacks_platform=True)
    try:
        return _time_module(client, question)
    except Exception as error:  # noqa: BLE001 - as above
        return Answer(error=_first_line(error))


def _first_line(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _time_module(client: tuple[Any, Any, Any], question: Question) -> Answer:
    backend, device, options = client
    text = Path(question.module).read_text() if question.module else EMPTY_MODULE
    begin = perf_counter()
    executable = backend.compile_and_load(text, [device], options)
    compile_s = perf_counter() - begin
    arguments = _zeros(question, device)
    for _ in range(question.warm_up_runs):
        _run(executable, arguments)
    durations: list[float] = []
    begin = perf_counter()
    while len(durations) < question.least_runs or (
        len(durations) < question.most_runs and perf_counter() - begin < question.enough_s
    ):
        durations.append(_run(executable, arguments))
    return Answer(durations_s=tuple(durations), compile_s=compile_s, device=device.device_kind)


def _client(platform: str) -> tuple[Any, Any, Any]:
    """Return the backend, its first device and compile options."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    jax = import_module("jax")
    jax.config.update("jax_platforms", platform)
    # JAX narrows 64-bit arguments otherwise.
    jax.config.update("jax_enable_x64", val=True)
    backends = import_module("jax.extend.backend")
    options = backends.get_compile_options(num_replicas=1, num_partitions=1)
    backend = backends.get_backend(platform)
    return backend, backend.local_devices()[0], options


def _zeros(question: Question, device: Any) -> list[Any]:
    """Return an array of zeros for every argument."""
    jax = import_module("jax")
    numpy = import_module("numpy")
    return [
        jax.device_put(numpy.zeros(shape, dtype=jax.numpy.dtype(name)), device)
        for shape, name in question.arguments
    ]


def _run(executable: Any, arguments: list[Any]) -> float:
    begin = perf_counter()
    outputs = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
    for result in outputs:
        for array in result:
            array.block_until_ready()
    return perf_counter() - begin


if __name__ == "__main__":
    answer_lines(_answered)
