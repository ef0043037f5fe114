"""The elementwise end of a step is divided as XLA's partitioner divides it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from hespas.frontend.load import load_per_device
from hespas.frontend.overrides import NO_OPTIONS, LoadOptions, Unpartitioned
from hespas.frontend.stablehlo import tail
from hespas.frontend.stablehlo.load import read_stablehlo
from hespas.models.model import parse_mesh
from hespas.prediction.composition import predict
from hespas.prediction.options import (
    CompileChoice,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.result import Prediction
from hespas.program.attrs import CollectiveAttrs
from hespas.program.program import Program, all_ops
from hespas.sources.options import ModelOptions
from hespas.xla.mlir.module import parse_mlir
from small_models import EXPERTS, SMALL

_CUT = LoadOptions(divides_end=True)
_ALIKE = '{"tp"}, {"data", "fsdp"}'
_ARRAY, _NUMBER = "tensor<8x4xf32>", "tensor<f32>"


def _step(weights: str, *, updates: int = 30) -> bytes:
    """Return a step of one product, whose weights change by many elementwise operations."""
    sharding = f"{{sdy.sharding = #sdy.sharding<@mesh, [{weights}]>}}"
    changes = "\n".join(
        f"%w{n + 1} = stablehlo.multiply %w{n}, %rates : {_ARRAY}\n"
        f"%s{n + 1} = stablehlo.add %s{n}, %w{n + 1} : {_ARRAY}"
        for n in range(updates)
    )
    return f"""
    module @step attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
      sdy.mesh @mesh = <["data"=2, "fsdp"=2, "tp"=2]>
      func.func public @main(
          %weights: {_ARRAY} {sharding},
          %a: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"data"}}]>}},
          %b: tensor<16x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}]>}},
          %rate: {_NUMBER} {{sdy.sharding = #sdy.sharding<@mesh, []>}})
          -> ({_ARRAY} {sharding}, {_NUMBER}) {{
        %zero = stablehlo.constant dense<0.0> : {_NUMBER}
        %gradient = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
          : (tensor<8x16xf32>, tensor<16x4xf32>) -> {_ARRAY}
        %rates = stablehlo.broadcast_in_dim %rate, dims = [] : ({_NUMBER}) -> {_ARRAY}
        %w0 = stablehlo.subtract %weights, %gradient : {_ARRAY}
        %s0 = stablehlo.multiply %gradient, %gradient : {_ARRAY}
        {changes}
        %sum = stablehlo.reduce(%s{updates} init: %zero) applies stablehlo.add
          across dimensions = [0, 1] : ({_ARRAY}, {_NUMBER}) -> {_NUMBER}
        return %w{updates}, %sum : {_ARRAY}, {_NUMBER}
      }}
    }}""".encode()


def _tail_of(source: bytes) -> tail.Tail | None:
    read = read_stablehlo(parse_mlir(source, name="step"), source, options=NO_OPTIONS)
    assert isinstance(read, Unpartitioned)
    return read.tail


def _whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        return None

    monkeypatch.setattr(tail, "tail_of", none)


def _described(program: Program) -> list[str]:
    texts: list[str] = []
    for op in program.main.body.operations:
        types = ", ".join(str(result.type) for result in op.results)
        groups = op.attrs.groups if isinstance(op.attrs, CollectiveAttrs) else ""
        texts.append(f"{op.kind} {types} {groups}")
    return texts


@pytest.mark.parametrize("sharding", [_ALIKE, '{}, {"tp"}', "{}, {}"])
def test_operations_stand_where_xla_puts_them(
    sharding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _step(sharding)
    assert _tail_of(source) is not None
    own = load_per_device(source, name="step", options=_CUT).program
    _whole(monkeypatch)
    by_xla = load_per_device(source, name="step", options=_CUT).program
    assert _described(own) == _described(by_xla)
    assert own.aliases == by_xla.aliases


@pytest.mark.parametrize(
    "source",
    [
        _step('{"tp"}, {?}'),
        _step(_ALIKE, updates=10),
        _step(_ALIKE).replace(b"8x4", b"8x6").replace(b"16x4", b"16x6"),
        re.sub(rb"((?:add|subtract) (%\w+)), %\w+", rb"\1, \2", _step(_ALIKE)),
        _step(_ALIKE).replace(
            b"tensor<8x16xf32> {", b'tensor<8x16xf32> {mhlo.memory_kind = "pinned_host", '
        ),
    ],
    ids=["open", "short", "uneven", "unknown", "on host"],
)
def test_what_arguments_do_not_divide_is_the_partitioners(source: bytes) -> None:
    assert _tail_of(source) is None


@pytest.mark.parametrize("place", [b"%gradient = ", b"%sum = "], ids=["before", "behind"])
def test_the_partitioner_sees_chlo(place: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    value = b"%a : tensor<8x16xf32> -> tensor<8x16xf32>"
    if place == b"%sum = ":
        value = b"%weights : tensor<8x4xf32> -> tensor<8x4xf32>"
    source = _step(_ALIKE).replace(place, b"%erf = chlo.erf " + value + b"\n" + place)
    own = load_per_device(source, name="step", options=_CUT).program
    _whole(monkeypatch)
    assert _described(own) == _described(load_per_device(source, name="step", options=_CUT).program)


def _collectives(prediction: Prediction) -> Counter[str]:
    return Counter(
        f"{op.kind} {[str(value.type) for value in op.operands]} {op.attrs.groups}"
        for op in all_ops(prediction.graph.program)
        if isinstance(op.attrs, CollectiveAttrs)
    )


@pytest.mark.parametrize(
    ("name", "mesh", "settings", "fidelity"),
    [
        ("llama3-8b", "fsdp=2,tp=2", SMALL, Fidelity.FUSED),
        ("llama3-8b", "data=2,fsdp=2", SMALL, Fidelity.LIBRARY),
        ("llama3-8b", "data=4", SMALL | {"zero": "1"}, Fidelity.FUSED),
        ("llama3-8b", "fsdp=4", SMALL | {"lora_rank": "4"}, Fidelity.FUSED),
        ("mixtral-8x7b", "fsdp=2,expert=2", SMALL | EXPERTS, Fidelity.FUSED),
        ("gemma2-2b", "fsdp=2,tp=2", SMALL, Fidelity.EXPORTED),
        ("microsoft/resnet-18", "data=4", {}, Fidelity.FUSED),
    ],
)
def test_steps_are_those_of_whole_partitions(
    name: str,
    mesh: str,
    settings: dict[str, str],
    fidelity: Fidelity,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = parse_mesh(mesh).device_count
    options = PredictOptions(
        program=ProgramOptions(
            file=Path(name), model=ModelOptions(mesh=parse_mesh(mesh), settings=settings)
        ),
        network=NetworkOptions(cluster=f"{devices}xH100_80GB"),
        compile=CompileChoice(fidelity=fidelity),
    )
    own = predict(options)
    _whole(monkeypatch)
    by_xla = predict(options)
    assert own.step_time_s == pytest.approx(by_xla.step_time_s, rel=1e-3)
    assert own.memory.peak_bytes == pytest.approx(by_xla.memory.peak_bytes, rel=5e-3)
    assert _collectives(own) == _collectives(by_xla)
