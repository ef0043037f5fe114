from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from hespas.xla.run import step
from hespas.xla.run.step import synthetic_input

numpy: Any = import_module("numpy")
jax_numpy: Any = import_module("jax.numpy")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "complex64"])
def test_inputs_are_small_differ_and_are_the_same_each_time(name: str) -> None:
    array = synthetic_input((3, 100), jax_numpy.dtype(name))
    assert array.shape == (3, 100)
    assert array.dtype == jax_numpy.dtype(name)
    size = numpy.abs(array.astype("complex64"))
    assert size.max() <= 1 / 16
    assert len(numpy.unique(size)) > 10
    assert array.tobytes() == synthetic_input((3, 100), jax_numpy.dtype(name)).tobytes()


@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "uint8", "int32", "uint32", "int64"])
def test_integers_fit_their_type(name: str) -> None:
    array = synthetic_input((300,), jax_numpy.dtype(name)).astype("int64")
    assert array.min() == 0
    assert array.max() == (1 if name.endswith("int4") else 99)


def test_a_step_count_is_one() -> None:
    assert synthetic_input((), "int32") == 1


def test_an_input_may_be_empty() -> None:
    assert synthetic_input((0, 4), "float32").shape == (0, 4)
    assert synthetic_input((0,), "int32").shape == (0,)


def test_a_process_that_answered_waits_for_the_others_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def answer(request: type[object], answered: object) -> None:
        del request, answered
        done.append("answered")

    distributed = import_module("jax").distributed
    monkeypatch.setattr(step, "answer_question", answer)
    monkeypatch.setattr(step, "end_process", lambda: done.append("ended"))
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "shutdown", lambda: done.append("waited"))
    step.main()
    assert done == ["answered", "waited", "ended"]
