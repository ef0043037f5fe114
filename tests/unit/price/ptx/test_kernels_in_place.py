"""What writes a part of a buffer in place, or reads a slice of one, costs that part alone."""

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.price.driver import is_kernel
from hespas.price.kernel import COPY, LOOP, kernel_of
from hespas.price.ptx.kernels import KernelPricer, kernel_pricer
from hespas.price.ptx.terms import reasons
from hespas.program.kernels import CompiledKernels
from hespas.program.program import nested_ops
from hespas.work.expand import Leaf, expand

from .conftest import STREAM, launch

_SCATTERED = """
  stablehlo.return %sum : tensor<f32>
}) {indices_are_sorted = false, unique_indices = false, scatter_dimension_numbers =
  #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
  scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
"""
_UPDATE = (
    '"stablehlo.dynamic_update_slice"(%buffer, %part, %at, %at) : (tensor<ROWSx64xf32>, '
    "tensor<4x64xf32>, tensor<i32>, tensor<i32>) -> tensor<ROWSx64xf32>"
)
_SCATTER = (
    """"stablehlo.scatter"(%buffer, %rows, %part) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>"""
    + _SCATTERED
    + ": (tensor<ROWSx64xf32>, tensor<4x1xi32>, tensor<4x64xf32>) -> tensor<ROWSx64xf32>"
)
_SLICE = (
    '"stablehlo.dynamic_slice"(%buffer, %at, %at) {slice_sizes = array<i64: 4, 64>} : '
    "(tensor<ROWSx64xf32>, tensor<i32>, tensor<i32>) -> tensor<4x64xf32>"
)
_GATHER = """"stablehlo.gather"(%buffer, %rows) {dimension_numbers = #stablehlo.gather<
    offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 64>} : (tensor<ROWSx64xf32>, tensor<4x1xi32>) -> tensor<4x64xf32>"""
_ARGUMENTS = {
    "buffer": "tensor<ROWSx64xf32>",
    "other": "tensor<ROWSx64xf32>",
    "part": "tensor<4x64xf32>",
    "half": "tensor<4x64xbf16>",
    "rows": "tensor<4x1xi32>",
    "at": "tensor<i32>",
}


def _fused(body: str, *results: str) -> str:
    names, kinds = ", ".join(f"%{name}_0" for name in _ARGUMENTS), ", ".join(_ARGUMENTS.values())
    inner = ", ".join(f"%{name}: {kind}" for name, kind in _ARGUMENTS.items())
    made = f"({', '.join(results)})" if len(results) > 1 else "".join(results)
    return (
        f'"mhlo.fusion"({names}) ({{ ^bb0({inner}):\n{body}\n}}) '
        f"{{fusion_kind = #mhlo<fusion_kind kLoop>}} : ({kinds}) -> {made}"
    )


_BUFFER, _PART = "tensor<ROWSx64xf32>", "tensor<4x64xf32>"
FORMS = {
    "update": _UPDATE,
    "scatter": _SCATTER,
    "slice": _SLICE,
    "gather": _GATHER,
    "fused update": _fused(f"%u = {_UPDATE}\nmhlo.return %u : {_BUFFER}", _BUFFER),
    "fused update of what is converted": _fused(
        "%c = stablehlo.convert %half : (tensor<4x64xbf16>) -> tensor<4x64xf32>\n"
        f"%u = {_UPDATE.replace('%part', '%c')}\nmhlo.return %u : {_BUFFER}",
        _BUFFER,
    ),
    "fused update of another shape": _fused(
        """%b = "mhlo.bitcast"(%buffer) : (tensor<ROWSx64xf32>) -> tensor<ROWSx8x8xf32>
        %p = "mhlo.bitcast"(%part) : (tensor<4x64xf32>) -> tensor<4x8x8xf32>
        %u = "stablehlo.dynamic_update_slice"(%b, %p, %at, %at, %at) : (tensor<ROWSx8x8xf32>,
          tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<ROWSx8x8xf32>
        %r = "mhlo.bitcast"(%u) : (tensor<ROWSx8x8xf32>) -> tensor<ROWSx64xf32>
        mhlo.return %r : tensor<ROWSx64xf32>""",
        _BUFFER,
    ),
    "fused updates of two buffers": _fused(
        f"%u = {_UPDATE}\n%v = {_UPDATE.replace('%buffer', '%other')}\n"
        f"mhlo.return %u, %v : {_BUFFER}, {_BUFFER}",
        _BUFFER,
        _BUFFER,
    ),
    "fused update and what is written": _fused(
        "%n = stablehlo.negate %part : tensor<4x64xf32>\n"
        f"%u = {_UPDATE.replace('%part', '%n')}\nmhlo.return %u, %n : {_BUFFER}, {_PART}",
        _BUFFER,
        _PART,
    ),
    "fused update of what was there": _fused(
        f"%s = {_SLICE}\n%n = stablehlo.add %s, %part : tensor<4x64xf32>\n"
        f"%u = {_UPDATE.replace('%part', '%n')}\nmhlo.return %u : {_BUFFER}",
        _BUFFER,
    ),
    "fused scatter": _fused(f"%u = {_SCATTER}\nmhlo.return %u : {_BUFFER}", _BUFFER),
    "fused slice": _fused(
        f"%s = {_SLICE}\n%n = stablehlo.negate %s : {_PART}\nmhlo.return %n : {_PART}", _PART
    ),
    "fused gather": _fused(
        f"%s = {_GATHER}\n%n = stablehlo.negate %s : {_PART}\nmhlo.return %n : {_PART}", _PART
    ),
}
KERNEL = """
%body (buffer: f32[ROWS,64], update: f32[4,64], at: s32[]) -> f32[ROWS,64] {
  %buffer = f32[ROWS,64]{1,0} parameter(0)
  %update = f32[4,64]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %u = f32[ROWS,64]{1,0} dynamic-update-slice(%buffer, %update, %at, %zero)
}

ENTRY %main (b: f32[ROWS,64], u: f32[4,64], at: s32[]) -> f32[ROWS,64] {
  %b = f32[ROWS,64]{1,0} parameter(0)
  %u = f32[4,64]{1,0} parameter(1)
  %at = s32[] parameter(2)
  ROOT %fusion.1 = f32[ROWS,64]{1,0} fusion(%b, %u, %at), kind=kLoop, calls=%body
}
"""
H100 = load_device("H100_80GB")


def _pricer(kernels: CompiledKernels | None = None) -> KernelPricer:
    pricer = kernel_pricer(H100, kernels)
    assert pricer is not None
    return pricer


def _exported(form: str, rows: int) -> Leaf:
    end = "_0" if "mhlo.fusion" in form else ""
    names = ", ".join(f"%{name}{end}: {kind}" for name, kind in _ARGUMENTS.items())
    results = form.rpartition(" -> ")[2].strip("()").split(", ")
    count = f":{len(results)}" if len(results) > 1 else ""
    made = ", ".join(f"%r#{at}" for at in range(len(results))) if count else "%r"
    kinds = ", ".join(results)
    text = (
        f"func.func @main({names}) -> ({kinds}) {{\n%r{count} = {form}\nreturn {made} : {kinds}\n}}"
    )
    program = load_source(text.replace("ROWS", str(rows)).encode(), name="part.mlir")
    (leaf,) = expand(program.main.body.operations)
    assert isinstance(leaf, Leaf)
    return leaf


def _compiled(rows: int) -> Leaf:
    source = "HloModule step, is_scheduled=true\n" + KERNEL.replace("ROWS", str(rows))
    program = load_source(source.encode(), name="step.hlo")
    (leaf,) = expand([op for op in program.main.body.operations if is_kernel(op, program)])
    assert isinstance(leaf, Leaf)
    return leaf


@pytest.mark.parametrize("name", FORMS)
def test_the_size_of_the_buffer_costs_nothing(name: str) -> None:
    small, large = (_exported(FORMS[name], rows) for rows in (100, 1_000_000))
    assert small.work == large.work
    assert _pricer().price(small) == _pricer().price(large)


def test_a_buffer_that_is_converted_is_walked_whole() -> None:
    form = _fused(
        """%b = stablehlo.negate %buffer : tensor<ROWSx64xf32>
        %u = "stablehlo.dynamic_update_slice"(%b, %part, %at, %at) : (tensor<ROWSx64xf32>,
          tensor<4x64xf32>, tensor<i32>, tensor<i32>) -> tensor<ROWSx64xf32>
        mhlo.return %u : tensor<ROWSx64xf32>""",
        _BUFFER,
    )
    small, large = (_exported(form, rows) for rows in (100, 1_000_000))
    assert _pricer().read(large).terms.turnover_s > 100 * _pricer().read(small).terms.turnover_s


@pytest.mark.parametrize("rows", [100, 1_000_000])
def test_the_launch_says_how_many_blocks_start(rows: int) -> None:
    one = launch("stream", blocks=2, threads=128, instruction="fusion.1")
    kernels = CompiledKernels(launches=(one,), ptx={"stream": STREAM})
    reading = _pricer(kernels).read(_compiled(rows))
    gpu = _pricer().gpu
    assert reading.analysis is None
    assert reading.category == LOOP
    assert reading.terms.turnover_s == pytest.approx(4 * gpu.warp_turnover_cycles / gpu.clock_hz)


def test_what_a_compiled_program_does_not_launch_is_a_copy_that_streams() -> None:
    other = launch("stream", blocks=2, threads=128, instruction="fusion.2")
    pricer = _pricer(CompiledKernels(launches=(other,), ptx={"stream": STREAM}))
    leaf = _compiled(1_000_000)
    reading = pricer.read(leaf)
    assert reading.category == COPY
    assert reading.terms.turnover_s == 0
    bandwidth = H100.memory_bandwidth_bytes_per_s * pricer.gpu.memory_efficiency
    assert reading.terms.memory_s == pytest.approx(leaf.work.bytes_moved / bandwidth)
    (why,) = reasons(reading.terms, None, category=COPY)
    assert "copy" in why
    assert kernel_of(leaf.op).category == LOOP


def test_the_forms_are_what_they_are_called() -> None:
    kinds = {
        name: {op.kind for region in _exported(form, 100).op.regions for op in nested_ops(region)}
        for name, form in FORMS.items()
        if name.startswith("fused")
    }
    assert "convert" in kinds["fused update of what is converted"]
    assert "bitcast" in kinds["fused update of another shape"]
    assert "scatter" in kinds["fused scatter"]
