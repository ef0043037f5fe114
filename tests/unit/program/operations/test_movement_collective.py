from __future__ import annotations

from collections.abc import Callable

from hespas.program.work import Work

WorkOf = Callable[[str], Work]


def _body(*kinds: str, element: str = "f32") -> str:
    lines = "".join(
        f"%{position + 10} = stablehlo.{kind} %a, %b : tensor<{element}>\n"
        for position, kind in enumerate(kinds)
    )
    last = f"stablehlo.return %{len(kinds) + 9} : tensor<{element}>"
    return f"({{ ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):\n {lines} {last} }})"


_GROUPS = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"


def test_an_all_reduce_adds_each_element_and_leaves_bytes_to_the_network(work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.all_reduce"(%0) {_body("add")} {{{_GROUPS}}} : '
        "(tensor<8x5xf32>) -> tensor<8x5xf32>"
    )

    assert work == Work(flops=(("f32", 40),))


def test_a_reduce_scatter_adds_what_comes_from_the_others(work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.reduce_scatter"(%0) {_body("add")} '
        f"{{{_GROUPS}, scatter_dimension = 0 : i64}} : (tensor<8x5xf32>) -> tensor<2x5xf32>"
    )

    assert work == Work(flops=(("f32", 40 - 10),))


def test_an_all_gather_computes_nothing(work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.all_gather"(%0) {{{_GROUPS}, all_gather_dim = 0 : i64}} : '
        "(tensor<2x5xf32>) -> tensor<8x5xf32>"
    )

    assert work == Work()
