"""Laws of what-if: taking a cause of time away never makes a step longer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.frontend.load import load_source
from hespas.hardware.device import Device
from hespas.hardware.presets import device_names, load_device
from hespas.prediction import composition
from hespas.prediction.explain.changes import all_changes
from hespas.prediction.options import EstimateOptions, NetworkOptions, PredictOptions
from hespas.price.gemm import Product, gemm_model
from hespas.price.roofline import Rates
from hespas.simulate.options import Model
from scheduled import HEADER, done, kernel, start, sync

PROGRAM = HEADER.format(
    aliases="",
    functions="",
    result="f32[256]",
    body="\n".join([
        f"  {line}"
        for line in (
            kernel("x", "a"), start("s", "x"), kernel("y", "x"), done("t", "s"), kernel("z", "t"),
            sync("u", "z"), f"ROOT {kernel('w', 'u')}",
        )
    ]),
)  # fmt: skip
SYSTEM = "A100_SXM_40GB_4GPU"
MEASURED = [name for name in device_names() if load_device(name).measured is not None]

_RATE = st.floats(min_value=1e6, max_value=1e15)
_FASTER = st.builds(
    Rates,
    memory=st.floats(min_value=1, max_value=1e6),
    arithmetic=st.floats(min_value=1, max_value=1e6),
    launch=st.floats(min_value=0, max_value=1),
)
_SIZES = st.integers(min_value=1, max_value=1 << 15)


@pytest.mark.parametrize("model", Model)
@settings(max_examples=20, deadline=None)
@given(peak=_RATE, bandwidth=_RATE, launch_s=st.floats(min_value=0, max_value=1e-3))
def test_no_change_makes_a_step_longer(
    model: Model, peak: float, bandwidth: float, launch_s: float
) -> None:
    device = Device(
        name="one",
        peak_flops=peak,
        memory_bandwidth_bytes_per_s=bandwidth,
        launch_overhead_s=launch_s,
    )
    options = PredictOptions(
        estimate=EstimateOptions(node=device, method="roofline"),
        network=NetworkOptions(system=SYSTEM, model=model),
    )
    program = load_source(PROGRAM.encode(), name="step.hlo")
    for each in all_changes(composition.predict(options, program=program)):
        # A simulation rounds to ns, or to ps.
        assert each.gain > -1e-3 or each.step_time_s < 2e-9, each


@pytest.mark.parametrize("name", MEASURED)
@settings(max_examples=2, deadline=None)
@given(rates=_FASTER, m=_SIZES, n=_SIZES, k=_SIZES)
def test_no_faster_device_multiplies_more_slowly(
    name: str, rates: Rates, m: int, n: int, k: int
) -> None:
    model = gemm_model(load_device(name))
    product = Product(type_name="bf16", m=m, n=n, k=k)
    assert model.at_rates(rates).price(product).time_s <= model.price(product).time_s * (1 + 1e-9)
