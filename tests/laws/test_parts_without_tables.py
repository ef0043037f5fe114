"""Parts without tables: how near they get to their peaks, judged by parts that have them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import pytest

import hespas
from hespas.errors import HardwareError
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.price.gemm import GemmModel, Product, gemm_model, nearest_part, part_of
from hespas.price.tables import Part, load_part, part_names

NODES = {
    "A100_SXM": "A100_SXM_80GB",
    "H100_SXM": "H100_80GB",
    "H200_SXM": "H200_141GB",
    "B200_SXM": "B200_180GB",
    "B300_SXM": "B300_288GB",
    "GB200": "GB200_186GB",
    "GB300": "GB300_288GB",
    "L40S": "L40S_48GB",
}
GENERATIONS = ({"A100_SXM"}, {"H100_SXM", "H200_SXM"}, {"L40S"})
PRODUCTS = [
    Product(type_name="bf16", m=m, n=n, k=k)
    for m, n, k in product((8, 128, 2048, 8192), (1024, 4096, 14336), (1024, 4096, 14336))
]


def generation(part: str) -> set[str]:
    """Return the parts that share a part's generation, itself among them."""
    return next(
        (each for each in GENERATIONS if part in each), {*NODES} - set().union(*GENERATIONS)
    )


def ratios(device: Device, part: Part, expected: str) -> list[float]:
    """Return the times of products by a part's tables over those by the device's own."""
    own = GemmModel(device=device, part=load_part(expected))
    other = GemmModel(device=replace(device, measured=None), part=part)
    return [other.price(each).time_s / own.price(each).time_s for each in PRODUCTS]


@pytest.mark.parametrize("name", NODES)
def test_products_withheld_come_out_as_measured_by_another_generation(name: str) -> None:
    device = load_device(NODES[name])
    others = [load_part(part) for part in part_names() if part not in generation(name)]
    found = ratios(device, nearest_part(device, others), name)
    at_peak = [GemmModel(device=device, part=load_part(name)).floor_s(each) for each in PRODUCTS]
    own = [gemm_model(device).price(each).time_s for each in PRODUCTS]
    optimism = median(peak / time for peak, time in zip(at_peak, own, strict=True))
    assert 0.85 <= median(found) <= 1.15
    assert optimism < 0.75


def test_a_copy_without_tables_gets_those_of_the_part_that_it_copies() -> None:
    h100 = load_device("H100_80GB")
    copy = replace(h100, name="mine", measured=None)
    for each in PRODUCTS:
        assert gemm_model(copy).price(each).time_s == gemm_model(h100).price(each).time_s


def test_the_answer_names_the_part_and_the_error(tmp_path: Path) -> None:
    file = tmp_path / "product.mlir"
    kind = "tensor<4096x4096xbf16>"
    file.write_text(
        f"module {{\nfunc.func @main(%a: {kind}, %b: {kind}) -> {kind} {{\n"
        "%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : "
        f"({kind}, {kind}) -> {kind}\nreturn %r : {kind}\n}}\n}}\n"
    )
    mine = replace(load_device("H100_80GB"), name="mine", measured=None)
    likely = hespas.predict(file, mine, fidelity="fused")
    bound = hespas.predict(file, mine, fidelity="fused", method="roofline")
    (note,) = [each for each in likely.assumptions if "no tables are of mine" in each]
    assert "NVIDIA H100 80GB HBM3" in note
    assert "28 % shorter to 9 % longer" in note
    assert 2 * 4096**3 / 989.5e12 <= bound.step_time_s < likely.step_time_s
    assert not any("no tables are of" in each for each in bound.assumptions)


def test_a_tpu_has_no_tables() -> None:
    with pytest.raises(HardwareError, match="no tables of measured kernels serve this device"):
        part_of(load_device("TPUv5e"))
