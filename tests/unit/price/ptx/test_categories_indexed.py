"""What is gathered and scattered costs the sectors that it lies in, whichever way it is priced."""

from collections import OrderedDict

import numpy as np
import pytest
from msgspec import structs

from hespas.frontend.load import load_source
from hespas.hardware.microarchitecture import load_microarchitecture
from hespas.hardware.presets import load_device
from hespas.price.driver import is_kernel
from hespas.price.kernel import kernel_of
from hespas.price.ptx.categories import Indexed, indexed_by
from hespas.price.ptx.kernels import KernelPricer, kernel_pricer
from hespas.program.kernels import CompiledKernels
from hespas.work.expand import Leaf, expand

from .conftest import launch

H100 = load_device("H100_80GB")
GPU = load_microarchitecture(H100)
TABLE, PLACES = 2**28, 2**24
SECTOR = 32

GATHER = """
%body (table: f32[TABLE], at: s32[PLACES]) -> f32[PLACES] {
  %table = f32[TABLE]{0} parameter(0)
  %at = s32[PLACES]{0} parameter(1)
  %wide = s32[PLACES,1]{1,0} bitcast(%at)
  %found = f32[PLACES,1]{1,0} gather(%table, %wide), offset_dims={1}, collapsed_slice_dims={},
    start_index_map={0}, index_vector_dim=1, slice_sizes={1}
  ROOT %made = f32[PLACES]{0} bitcast(%found)
}

ENTRY %main (table: f32[TABLE], at: s32[PLACES]) -> f32[PLACES] {
  %table = f32[TABLE]{0} parameter(0)
  %at = s32[PLACES]{0} parameter(1)
  ROOT %fusion.1 = f32[PLACES]{0} fusion(%table, %at), kind=kLoop, calls=%body
}
"""
SCATTER = """
%combine (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] COMBINED
}

%body (table: f32[TABLE], at: s32[PLACES,1], part: f32[PLACES]) -> f32[TABLE] {
  %table = f32[TABLE]{0} parameter(0)
  %at = s32[PLACES,1]{1,0} parameter(1)
  %part = f32[PLACES]{0} parameter(2)
  ROOT %made = f32[TABLE]{0} scatter(%table, %at, %part), update_window_dims={},
    inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1,
    to_apply=%combine
}

ENTRY %main (table: f32[TABLE], at: s32[PLACES,1], part: f32[PLACES]) -> f32[TABLE] {
  %table = f32[TABLE]{0} parameter(0)
  %at = s32[PLACES,1]{1,0} parameter(1)
  %part = f32[PLACES]{0} parameter(2)
  ROOT %fusion.1 = f32[TABLE]{0} fusion(%table, %at, %part), kind=kLoop, calls=%body
}
"""
FORMS = {
    "gather": GATHER,
    "add": SCATTER.replace("COMBINED", "add(%a, %b)"),
    "set": SCATTER.replace("COMBINED", "bitcast(%b)"),
}
# One index a thread, and the element that it says.
READ = """
.visible .entry gathers(.param .u64 p_0, .param .u64 p_1, .param .u64 p_2)
.reqntid 128, 1, 1
{
    ld.param.b64 %rd1, [p_0];
    ld.param.b64 %rd2, [p_1];
    ld.param.b64 %rd3, [p_2];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    shl.b32 %r3, %r1, 7;
    or.b32 %r4, %r3, %r2;
    mul.wide.u32 %rd4, %r4, 4;
    add.s64 %rd5, %rd2, %rd4;
    ld.global.nc.b32 %r5, [%rd5];
    mul.wide.s32 %rd6, %r5, 4;
    add.s64 %rd7, %rd1, %rd6;
    ld.global.nc.b32 %r6, [%rd7];
    add.s64 %rd8, %rd3, %rd4;
    st.global.b32 [%rd8], %r6;
    ret;
}
"""


def _leaf(form: str, *, table: str = str(TABLE), places: int = PLACES) -> Leaf:
    text = form.replace("TABLE", table).replace("PLACES", str(places))
    program = load_source(f"HloModule step, is_scheduled=true\n{text}".encode(), name="step.hlo")
    (leaf,) = expand([op for op in program.main.body.operations if is_kernel(op, program)])
    assert isinstance(leaf, Leaf)
    return leaf


def _rows(shape: str, window: str, *, places: int, made: str) -> Indexed:
    """Return what a gather of windows moves on an H100."""
    text = f"""
ENTRY %main (table: {shape}, at: s32[{places},1]) -> {made} {{
  %table = {shape} parameter(0)
  %at = s32[{places},1]{{1,0}} parameter(1)
  ROOT %g = {made} gather(%table, %at), offset_dims={{1,2}}, collapsed_slice_dims={{}},
    start_index_map={{0}}, index_vector_dim=1, slice_sizes={{{window}}}
}}"""
    return indexed_by(kernel_of(_leaf(text).op), GPU)


def _pricer(kernels: CompiledKernels | None = None) -> KernelPricer:
    pricer = kernel_pricer(H100, kernels)
    assert pricer is not None
    return pricer


def _read_pricer() -> KernelPricer:
    one = launch("gathers", blocks=PLACES // 128, threads=128, instruction="fusion.1")
    return _pricer(CompiledKernels(launches=(one,), ptx={"gathers": READ}))


@pytest.mark.parametrize("name", FORMS)
def test_single_elements_take_a_sector_each_from_device_memory(name: str) -> None:
    least = (SECTOR + 4 + 4) * PLACES / H100.memory_bandwidth_bytes_per_s
    assert least == pytest.approx(200e-6, rel=0.01)
    assert least <= _pricer().price(_leaf(FORMS[name])).time_s <= 3 * least


def test_a_kernel_that_is_read_takes_as_long_as_one_that_is_not() -> None:
    reading = _read_pricer().read(_leaf(GATHER))
    assert reading.analysis is not None
    assert reading.analysis.data_addresses == 1
    assert reading.terms.time_s == pytest.approx(
        _pricer().read(_leaf(GATHER)).terms.time_s, rel=0.1
    )


@pytest.mark.parametrize("pricer", [_pricer(), _read_pricer()], ids=["category", "read"])
def test_a_table_that_l2_holds_is_read_once(pricer: KernelPricer) -> None:
    table = 2**16
    reading = pricer.read(_leaf(GATHER, table=str(table)))
    moved = reading.floor_s * H100.memory_bandwidth_bytes_per_s
    assert moved == pytest.approx(4 * (table + 2 * PLACES), rel=1e-6)


def _missed(sectors: int, kept: int, touched: int) -> int:
    """Return how often a cache misses that keeps what was touched last."""
    held: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for each in np.random.default_rng(0).integers(0, sectors, touched).tolist():
        if each in held:
            held.move_to_end(each)
            continue
        misses += 1
        held[each] = None
        if len(held) > kept:
            held.popitem(last=False)
    return misses


@pytest.mark.parametrize("times", [0.25, 1, 2, 8])
@pytest.mark.parametrize("part", [0.25, 0.5, 1.5])
def test_memory_has_again_what_a_cache_forgot(times: float, part: float) -> None:
    sectors = 1 << 12
    places, kept = int(times * sectors), int(part * sectors)
    leaf = _leaf(GATHER, table=str(8 * sectors), places=places)
    found = indexed_by(kernel_of(leaf.op), structs.replace(GPU, l2_bytes=SECTOR * kept))
    read = found.memory_bytes + min(32 * sectors, 4 * places)
    least = SECTOR * _missed(sectors, kept, places)
    assert 0.98 * least <= read <= 1.6 * least
    assert read + found.l2_bytes == SECTOR * places


@pytest.mark.parametrize("window", [1, 3, 8, 24, 48])
def test_neighbours_take_the_sectors_that_they_lie_in(window: int) -> None:
    starts = np.random.default_rng(0).integers(0, TABLE - window, 10_000)
    sectors = np.mean((4 * (starts + window) - 1) // SECTOR - 4 * starts // SECTOR + 1)
    found = _rows(f"f32[{TABLE},1]", f"{window},1", places=1000, made=f"f32[1000,{window},1]")
    assert found.memory_bytes + 4000 * window == pytest.approx(SECTOR * 1000 * sectors, rel=0.02)


@pytest.mark.parametrize("width", [16, 64, 4096])
def test_rows_of_whole_sectors_move_nothing_more(width: int) -> None:
    found = _rows(f"bf16[128256,{width}]", f"1,{width}", places=8192, made=f"bf16[8192,1,{width}]")
    assert found == Indexed()


def test_the_best_of_each_row_is_found_in_its_row() -> None:
    """Sorted rows take their elements of one row after another, each of which L1 holds."""
    text = """
ENTRY %main (table: f32[8192,4096], at: s32[PLACES,2]) -> f32[PLACES,1,1] {
  %table = f32[8192,4096]{1,0} parameter(0)
  %at = s32[PLACES,2]{1,0} parameter(1)
  ROOT %g = f32[PLACES,1,1]{2,1,0} gather(%table, %at), offset_dims={1,2},
    collapsed_slice_dims={}, start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}
}"""
    leaf = _leaf(text, places=2**25)
    found = indexed_by(kernel_of(leaf.op), GPU)
    assert found.memory_bytes == 0
    assert found.l2_bytes == 0
