from __future__ import annotations

import pytest
from msgspec.structs import replace

from hespas.compile.origin import compiled_elsewhere
from hespas.errors import HardwareError
from hespas.frontend.load import load_per_device
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Program
from hespas.program.recorded import encode_recorded
from hlo_programs import module, read_hlo
from recorded_steps import sharded_layers

PLAIN = "  x = f32[8] parameter(0)\n  ROOT y = f32[8] add(x, x)"
CALL = (
    "  x = f32[8,8] parameter(0)\n"
    '  ROOT y = f32[8,8] custom-call(x, x), custom_call_target="__cublas$gemm"'
)
OF_TPU = (
    "  x = f32[8] parameter(0)\n"
    '  ROOT y = f32[8] add(x, x), backend_config={"window_config":{"estimated_cycles":"9"}}'
)


def compiled(entry: str = PLAIN, target: str | None = None) -> Program:
    program = read_hlo(module(entry))
    if target is None:
        return program
    return replace(program, kernels=CompiledKernels(launches=(), ptx={}, target=target))


def saying(part: str) -> Program:
    """Return a program that says what it was compiled for."""
    header = f'is_scheduled=true, frontend_attributes={{hespas_target="{part}"}}'
    return read_hlo(module(CALL, header=header))


@pytest.mark.parametrize(
    ("program", "node", "said"),
    [
        (compiled(CALL), "TPUv3", "compiled for a GPU (it calls __cublas$gemm)"),
        (compiled(target="sm_90a"), "TPUv3", "compiled for a GPU (it has a GPU's kernels)"),
        (compiled(OF_TPU), "H100_80GB", "compiled for a TPU, and is priced on H100_80GB"),
        (compiled(OF_TPU), "MI300X", "compiled for a TPU, and is priced on MI300X"),
        (compiled(CALL), "MI300X", "for a GPU (it calls __cublas$gemm), perhaps for another than"),
        (compiled(target="sm_90a"), "MI300X", "another part than MI300X, which no compiler"),
        (compiled(target="sm_90a"), "A100_SXM_40GB", "for compute capability 9.0"),
        (compiled(target="sm_100a"), "H100_80GB", "for compute capability 10.0"),
        (compiled(target="sm_103"), "B200_180GB", "for compute capability 10.3"),
        (compiled(OF_TPU), "TPUv5e", "does not say for which TPU it was compiled; it is taken to"),
        (saying("tpu_v5e"), "TPUv5p", "for TPU v5e, and is priced on TPUv5p (TPU v5p)"),
        (saying("tpu_v5e"), "H100_80GB", "for TPU v5e, and is priced on H100_80GB (compute capab"),
        (saying("sm_90"), "A100_SXM_40GB", "9.0, and is priced on A100_SXM_40GB (compute capabili"),
        (saying("sm_90"), "MI300X", "9.0, and is priced on MI300X, which no compiler at hand know"),
    ],
)
def test_what_was_compiled_for_another_part_is_said_to_be(
    program: Program, node: str, said: str
) -> None:
    (shown,) = compiled_elsewhere(program, node)
    assert said in shown
    assert node in shown


@pytest.mark.parametrize(
    ("program", "node"),
    [
        (compiled(), "TPUv3"),
        (compiled(CALL), "H100_80GB"),
        (saying("tpu_v3"), "TPUv3"),
        (saying("sm_90"), "H200_141GB"),
        (compiled(target=""), "A100_SXM_40GB"),
        (compiled(target="sm_90a"), "H100_80GB"),
        (compiled(target="sm_100a"), "B200_180GB"),
        (read_hlo(module(CALL, header="is_scheduled=false")), "TPUv3"),
    ],
)
def test_nothing_is_said_of_what_fits_or_does_not_show(program: Program, node: str) -> None:
    assert compiled_elsewhere(program, node) == ()


def recorded() -> Program:
    """Return a step of PyTorch that was recorded for an H100."""
    return load_per_device(encode_recorded(sharded_layers()), name="step.json").program


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("H100_80GB", ""),
        ("H100_96GB", ""),
        ("H200_141GB", ""),
        ("A100_SXM_80GB", "recorded for compute capability 9.0, and is priced on A100_SXM_80GB"),
        ("MI300X", "priced on MI300X, for which PyTorch would compile"),
    ],
)
def test_a_recorded_step_says_if_it_is_priced_on_another_part(node: str, said: str) -> None:
    notes = compiled_elsewhere(recorded(), node)
    assert said in " ".join(notes)
    assert bool(said) == bool(notes)


def test_a_step_of_pytorch_for_gpus_does_not_run_on_a_tpu() -> None:
    with pytest.raises(HardwareError, match="TPUv3 is a TPU"):
        compiled_elsewhere(recorded(), "TPUv3")
