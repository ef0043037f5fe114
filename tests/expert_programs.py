"""Programs with products of groups of rows, and exchanges of such rows."""

from __future__ import annotations

from programs import main_function, on_devices


def grouped(
    result: str, lhs: str, rhs: str, sizes: str, *, rows: int = 64, k: int = 8, n: int = 16
) -> str:
    """Return a product of rows in four groups, each with a matrix of its own."""
    numbers = (
        "#chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], "
        "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>"
    )
    return (
        f'{result} = "chlo.ragged_dot"({lhs}, {rhs}, {sizes}) <{{precision_config = [], '
        f"ragged_dot_dimension_numbers = {numbers}}}> : (tensor<{rows}x{k}xbf16>, "
        f"tensor<4x{k}x{n}xbf16>, tensor<4xi32>) -> tensor<{rows}x{n}xbf16>"
    )


def divided(result: str, lhs: str, rhs: str, sizes: str) -> str:
    """Return a product that sums over the rows of each of four groups: a gradient of weights."""
    numbers = (
        "#chlo.ragged_dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], "
        "lhs_ragged_dimensions = [0]>"
    )
    return (
        f'{result} = "chlo.ragged_dot"({lhs}, {rhs}, {sizes}) <{{precision_config = [], '
        f"ragged_dot_dimension_numbers = {numbers}}}> : (tensor<64x8xbf16>, tensor<64x16xbf16>, "
        "tensor<4xi32>) -> tensor<4x8x16xbf16>"
    )


def product_alone() -> str:
    """Return a program of one product of four groups, 64 x 8 by 8 x 16."""
    return main_function(
        f"{grouped('%r', '%x', '%w', '%g')}\nreturn %r : tensor<64x16xbf16>",
        arguments="%x: tensor<64x8xbf16>, %w: tensor<4x8x16xbf16>, %g: tensor<4xi32>",
        results="tensor<64x16xbf16>",
    )


def gradient_alone() -> str:
    """Return a program of one product that sums over the rows of groups."""
    return main_function(
        f"{divided('%r', '%x', '%y', '%g')}\nreturn %r : tensor<4x8x16xbf16>",
        arguments="%x: tensor<64x8xbf16>, %y: tensor<64x16xbf16>, %g: tensor<4xi32>",
        results="tensor<4x8x16xbf16>",
    )


def experts_on_four(*, room: int = 256) -> str:
    """Return a layer of 16 experts on four devices, each with 64 rows of tokens.

    Rows go to the devices of their experts, which have room for ``room`` of them, are multiplied
    there, and come back.
    """
    sent, taken = "tensor<64x8xbf16>", f"tensor<{room}x8xbf16>"

    def exchange(result: str, given: str, into: str, kinds: tuple[str, str]) -> str:
        return (
            f"{result} = stablehlo.custom_call @ragged_all_to_all({given}, {into}, %o, %o, %o, %o) "
            "{api_version = 4 : i32, backend_config = {channel_id = 1 : i64, replica_groups = "
            f"dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}}}} : ({kinds[0]}, {kinds[1]}, tensor<4xi32>,"
            f" tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> {kinds[1]}"
        )

    body = "\n".join(
        (
            exchange("%a", "%x", "%in", (sent, taken)),
            grouped("%b", "%a", "%w", "%g", rows=room, n=8),
            exchange("%c", "%b", "%x", (taken, sent)),
            f"return %c : {sent}",
        )
    )
    arguments = f"%x: {sent}, %in: {taken}, %w: tensor<4x8x8xbf16>, %g: tensor<4xi32>"
    main = main_function(body, arguments=f"{arguments}, %o: tensor<4xi32>", results=sent)
    return on_devices(main)
