from __future__ import annotations

from collections.abc import Callable
from math import log2

import pytest

from hespas.program.work import Work

WorkOf = Callable[[str], Work]


def _cholesky_flops(size: int) -> int:
    """Count by running the algorithm on nothing."""
    flops = 0
    for column in range(size):
        for _ in range(column, size):
            flops += 2 * column
        flops += size - column - 1
    return flops


@pytest.mark.parametrize("size", [1, 2, 3, 8, 17])
def test_cholesky_counts_what_the_algorithm_does(size: int, work_of: WorkOf) -> None:
    kind = f"tensor<3x{size}x{size}xf32>"

    work = work_of(f'"stablehlo.cholesky"(%0) {{lower = true}} : ({kind}) -> {kind}')

    assert work.total_flops == 3 * _cholesky_flops(size)
    assert work.transcendentals == 3 * size


@pytest.mark.parametrize(
    ("left_side", "right"), [("true", "tensor<3x8x5xf32>"), ("false", "tensor<3x5x8xf32>")]
)
def test_a_triangular_solve_is_n_squared_for_each_right_hand_side(
    left_side: str, right: str, work_of: WorkOf
) -> None:
    work = work_of(
        f'"stablehlo.triangular_solve"(%0, %1) {{left_side = {left_side}, lower = true, '
        "unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : "
        f"(tensor<3x8x8xf32>, {right}) -> {right}"
    )

    assert work.flops == (("f32", 3 * 5 * sum(2 * row + 1 for row in range(8))),)


@pytest.mark.parametrize(
    ("kind", "lengths", "signature", "flops"),
    [
        ("FFT", "8", "(tensor<3x8xcomplex<f32>>) -> tensor<3x8xcomplex<f32>>", 3 * 5 * 8 * 3),
        (
            "IFFT",
            "8, 4",
            "(tensor<8x4xcomplex<f32>>) -> tensor<8x4xcomplex<f32>>",
            5 * 32 * (3 + 2),
        ),
        ("RFFT", "16", "(tensor<3x16xf32>) -> tensor<3x9xcomplex<f32>>", 3 * 5 * 16 * 4 // 2),
        ("IRFFT", "16", "(tensor<3x9xcomplex<f32>>) -> tensor<3x16xf32>", 3 * 5 * 16 * 4 // 2),
        ("FFT", "7", "(tensor<7xcomplex<f32>>) -> tensor<7xcomplex<f32>>", round(5 * 7 * log2(7))),
        ("FFT", "1", "(tensor<1xcomplex<f32>>) -> tensor<1xcomplex<f32>>", 0),
    ],
)
def test_a_fourier_transform_is_five_n_log_n(
    kind: str, lengths: str, signature: str, flops: int, work_of: WorkOf
) -> None:
    work = work_of(
        f'"stablehlo.fft"(%0) {{fft_type = #stablehlo<fft_type {kind}>, '
        f"fft_length = array<i64: {lengths}>}} : {signature}"
    )

    assert work.total_flops == flops
    assert set(dict(work.flops)) <= {"f32"}


def test_a_transform_over_several_dimensions_passes_over_memory_for_each(work_of: WorkOf) -> None:
    size = 4 * 8 * 16 * 8
    kind = "tensor<4x8x16xcomplex<f32>>"
    work = work_of(
        '"stablehlo.fft"(%0) {fft_type = #stablehlo<fft_type FFT>, '
        f"fft_length = array<i64: 4, 8, 16>}} : ({kind}) -> {kind}"
    )
    assert (work.bytes_read, work.bytes_written) == (3 * size, 3 * size)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("cusolver_getrf_ffi", (2, 3)),
        ("LuDecomposition", (2, 3)),
        ("cusolver_geqrf_ffi", (4, 3)),
        ("Qr", (4, 3)),
    ],
)
def test_factorisations_of_libraries_take_what_the_textbook_says(
    target: str, parts: tuple[int, int], work_of: WorkOf
) -> None:
    work = work_of(
        f'"stablehlo.custom_call"(%0) {{call_target_name = "{target}"}} : '
        "(tensor<2x30x30xf32>) -> (tensor<2x30x30xf32>, tensor<2x30xf32>)"
    )
    assert work.total_flops == 2 * 30**3 * parts[0] // parts[1]


def test_halves_of_wide_numbers_on_a_tpu_are_moved(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.custom_call"(%0) {call_target_name = "X64SplitLow"} : '
        "(tensor<16xcomplex<f32>>) -> tensor<16xf32>"
    )
    assert work == Work(bytes_read=128, bytes_written=64)


def test_lapacks_factorisation_costs_what_the_operation_costs(work_of: WorkOf) -> None:
    kind = "tensor<3x8x8xf32>"

    called = work_of(
        '"stablehlo.custom_call"(%0) {call_target_name = "lapack_spotrf_ffi"} : '
        f"({kind}) -> ({kind}, tensor<3xi32>)"
    )
    operation = work_of(f'"stablehlo.cholesky"(%0) {{lower = true}} : ({kind}) -> {kind}')

    assert called == operation + Work(bytes_written=3 * 4)


def test_batch_normalisation(work_of: WorkOf) -> None:
    image, features = "tensor<4x6x8xf32>", "tensor<8xf32>"
    settings = "{epsilon = 1.0e-3 : f32, feature_index = 2 : i64}"
    three = f"({image}, {features}, {features})"

    inference = work_of(
        f'"stablehlo.batch_norm_inference"(%0, %1, %2, %3, %4) {settings} : '
        f"({image}, {features}, {features}, {features}, {features}) -> {image}"
    )
    training = work_of(
        f'"stablehlo.batch_norm_training"(%0, %1, %2) {settings} : {three} -> {three}'
    )
    gradient = work_of(
        f'"stablehlo.batch_norm_grad"(%0, %1, %2, %3, %4) {settings} : '
        f"({image}, {features}, {features}, {features}, {image}) -> {three}"
    )

    elements = 4 * 6 * 8
    assert inference.total_flops == 3 * elements + 2 * 8
    assert training.total_flops == 7 * elements + 4 * 8
    assert gradient.total_flops == 9 * elements + 5 * 8
    assert [w.transcendentals for w in (inference, training, gradient)] == [8, 8, 8]


def test_random_numbers_are_written_and_their_state_is_kept(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.rng_bit_generator"(%0) {rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>} '
        ": (tensor<2xui64>) -> (tensor<2xui64>, tensor<3x5xui32>)"
    )

    assert work == Work(transcendentals=2 + 15, bytes_read=16, bytes_written=16 + 60)


def test_top_k_compares_in_a_heap_of_k(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.custom_call"(%0) {call_target_name = "mhlo.topk"} : '
        "(tensor<4x100xf32>) -> (tensor<4x8xf32>, tensor<4x8xi32>)"
    )

    assert work == Work(flops=(("f32", 400 * 4),), bytes_read=1600, bytes_written=2 * 4 * 8 * 4)


@pytest.mark.parametrize("which", ["", ", largest = false", ", largest = true"])
def test_the_partitioners_top_k_is_the_kernel_of_that_name(which: str, work_of: WorkOf) -> None:
    signature = "(tensor<4x100xbf16>) -> (tensor<4x8xbf16>, tensor<4x8xi32>)"

    native = work_of(f'"mhlo.topk"(%0) {{k = 8 : i64{which}}} : {signature}')
    called = work_of(f'"stablehlo.custom_call"(%0) {{call_target_name = "TopK"}} : {signature}')

    assert native == called
    assert native.flops == (("bf16", 400 * 4),)
    assert (native.bytes_read, native.bytes_written) == (800, 32 * 2 + 32 * 4)


def test_threefry_is_integer_work(work_of: WorkOf) -> None:
    kind = "tensor<9xui32>"
    work = work_of(
        '"stablehlo.custom_call"(%0, %1, %2, %3) {call_target_name = "cu_threefry2x32_ffi"} : '
        f"({kind}, {kind}, {kind}, {kind}) -> ({kind}, {kind})"
    )

    rounds, key, injections = 20 * 5, 2, 5 * 3
    assert work == Work(
        flops=(("ui32", 9 * (rounds + key + injections)),),
        bytes_read=4 * 36,
        bytes_written=2 * 36,
    )
