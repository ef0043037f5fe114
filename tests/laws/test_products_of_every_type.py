"""One large product on every preset device, in every type: bounded, and the type is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import hespas
from hespas.hardware.device import Device
from hespas.hardware.presets import device_names, load_device
from hespas.prediction.result import Prediction

SIZE = 8192
FLOPS = 2 * SIZE**3
SLOWEST = 3.0
"""No part's large products take longer than so many times their peak's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A type of operands and of the result; ``precision`` is an attribute of the product."""

    operand: str
    result: str = "f32"
    precision: str = ""

    def text(self) -> str:
        """Return the program."""
        lhs, made = f"tensor<{SIZE}x{SIZE}x{self.operand}>", f"tensor<{SIZE}x{SIZE}x{self.result}>"
        extra = f", precision = [{self.precision}, {self.precision}]" if self.precision else ""
        return (
            f"module {{\nfunc.func @main(%a: {lhs}, %b: {lhs}) -> {made} {{\n"
            f"%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]{extra} : "
            f"({lhs}, {lhs}) -> {made}\nreturn %r : {made}\n}}\n}}\n"
        )


CASES = {
    "f32": Case(operand="f32"),
    "f32_high": Case(operand="f32", precision="HIGH"),
    "f32_highest": Case(operand="f32", precision="HIGHEST"),
    "bf16": Case(operand="bf16"),
    "f16": Case(operand="f16"),
    "f8": Case(operand="f8E4M3FN"),
    "f4": Case(operand="f4E2M1FN"),
    "i8": Case(operand="i8", result="i32"),
    "i4": Case(operand="i4", result="i32"),
}
PASSES = {"f32": 1, "f32_high": 3, "f32_highest": 6}
"""Of bf16 on a TPU: bfloat16_3x and bfloat16_6x of `jax.lax.Precision`."""


def predicted(tmp_path: Path, device: Device, case: Case) -> Prediction:
    file = tmp_path / "product.mlir"
    file.write_text(case.text())
    return hespas.predict(file, device, fidelity="fused")


def served(device: Device, case: Case, assumptions: tuple[str, ...]) -> str | None:
    """Return the type that the answer says that it multiplies; None for any other type."""
    rates = device.per_datatype_flops
    if case.operand == "f32":
        names = ("f32",) if case.precision == "HIGHEST" else ("tf32", "f32")
        return next(name for name in names if name in rates)
    if case.operand in rates:
        return case.operand
    (named,) = [note for note in assumptions if f"names no rate of {case.operand}:" in note]
    if "priced at that of other types" in named:
        return None
    return named.split("multiplied as ")[1].split(",")[0]


@pytest.mark.parametrize("name", device_names())
def test_no_product_beats_its_peak_and_its_type_is_named(name: str, tmp_path: Path) -> None:
    device = load_device(name)
    rates = device.per_datatype_flops
    for key, case in CASES.items():
        step = predicted(tmp_path, device, case)
        if name.startswith("TPU") and key in PASSES:
            bound_s = PASSES[key] * FLOPS / rates["bf16"]
        else:
            unit = served(device, case, step.assumptions)
            bound_s = FLOPS / (device.peak_flops if unit is None else rates[unit])
        assert bound_s <= step.step_time_s * 1.0001 < SLOWEST * bound_s, key


CYCLES_MS = {
    ("TPUv4", "f32_high"): 13.09,
    ("TPUv4", "f32_highest"): 25.25,
    ("TPUv5e", "f32_high"): 17.3,
    ("TPUv5e", "f32_highest"): 34.20,
    ("TPUv5p", "f32_highest"): 15.00,
    ("TPUv6e", "f32_highest"): 8.172,
    ("TPUv3", "f32"): 8 * 2.419,
    ("TPUv3", "f32_high"): 8 * 6.811,
    ("TPUv3", "f32_highest"): 8 * 13.504,
    ("TPUv3", "i8"): 8 * 2.319,
    ("TPUv3", "f4"): 8 * 2.319,
    ("TPUv3", "f16"): 8 * 2.322,
    ("TPUv7x", "f32_high"): 8 * 0.415,
    ("TPUv7x", "f32_highest"): 8 * 0.852,
    ("TPUv7x", "i8"): 8 * 0.151,
    ("TPUv7x", "f4"): 8 * 0.149,
    ("TPUv7x", "f16"): 8 * 0.158,
}
"""What libtpu 0.0.42's cycles make of it, in ms; v3 and v7x: 8 products of 4096 x 4096."""


@pytest.mark.parametrize(("name", "key"), sorted(CYCLES_MS))
def test_products_without_a_compiler_take_what_libtpu_s_cycles_say(
    name: str, key: str, tmp_path: Path
) -> None:
    step = predicted(tmp_path, load_device(name), CASES[key])
    assert step.step_time_s * 1e3 == pytest.approx(CYCLES_MS[name, key], rel=0.14)


NVFP4_US = {
    "B200_180GB": (246.5, 257.6, 284.6),
    "B300_288GB": (225.7, 230.0, 244.3),
    "GB200_186GB": (221.0, 230.3, 279.8),
    "GB300_288GB": (210.0, 211.1, 227.6),
}
"""Measured under SGLang, vLLM and TensorRT-LLM (aiconfigurator-core 0.12.0)."""


@pytest.mark.parametrize("name", sorted(NVFP4_US))
def test_products_of_4_bits_take_what_was_measured(name: str, tmp_path: Path) -> None:
    step = predicted(tmp_path, load_device(name), CASES["f4"])
    fastest, *_, slowest = NVFP4_US[name]
    assert 0.97 * fastest <= step.step_time_s * 1e6 <= 1.03 * slowest
    assert any("products of f4E2M1FN from tables measured" in note for note in step.assumptions)


@pytest.mark.parametrize(
    ("name", "key", "base"),
    [("A100_SXM_80GB", "f4", "bf16"), ("H100_80GB", "f4", "f8E4M3FN"), ("B300_288GB", "i8", "f8")],
)
def test_tables_are_claimed_only_where_they_serve(
    name: str, key: str, base: str, tmp_path: Path
) -> None:
    notes = predicted(tmp_path, load_device(name), CASES[key]).assumptions
    operand = CASES[key].operand
    assert not any(f"products of {operand} from tables" in note for note in notes)
    assert any(
        f"products of {base} from tables measured" in note
        or f"products of {operand} are scaled by peak rates from tables of {base}" in note
        for note in notes
    )
