"""Programs whose regions, run one by one, must give what the whole gives.

Each has a text of its own and a reference in pure StableHLO, written by hand where the text
holds what only hespas understands.
"""

from __future__ import annotations

from dataclasses import dataclass

from programs import ADD_BODY, all_reduce, main_function, on_devices

F = "tensor<4x8xf32>"
GLOBAL = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids"
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 7, type = 1>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program, what it must compute, and on how many devices."""

    text: str
    reference: str
    partitions: int


def alone(body: str, arguments: str, results: str, *, reference: str = "") -> Case:
    text = main_function(body, arguments=arguments, results=results)
    shown = main_function(reference, arguments=arguments, results=results) if reference else text
    return Case(text=text, reference=shown, partitions=1)


def together(text: str, *, reference: str = "") -> Case:
    return Case(text=on_devices(text), reference=on_devices(reference or text), partitions=4)


ELEMENTWISE = alone(
    f"""
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %two = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> {F}
    %0 = stablehlo.multiply %a, %two : {F}
    %1 = stablehlo.tanh %0 : {F}
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : \
({F}, tensor<8x8xf32>) -> {F}
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : \
({F}, tensor<f32>) -> tensor<4xf32>
    %4 = stablehlo.transpose %2, dims = [1, 0] : ({F}) -> tensor<8x4xf32>
    %5 = stablehlo.add %2, %0 : {F}
    return %1, %3, %4, %5, %1, %two : {F}, tensor<4xf32>, tensor<8x4xf32>, {F}, {F}, {F}""",
    f"%a: {F}, %w: tensor<8x8xf32>",
    f"{F}, tensor<4xf32>, tensor<8x4xf32>, {F}, {F}, {F}",
)

LOOPS = alone(
    f"""
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %three = stablehlo.constant dense<3> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %up = stablehlo.abs %a : {F}
    %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {F}
    cond {{
      %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %n = stablehlo.add %i, %one : tensor<i32>
      %y = stablehlo.add %x, %up : {F}
      stablehlo.return %n, %y : tensor<i32>, {F}
    }}
    %k = "stablehlo.case"(%r#0) ({{
      stablehlo.return %up : {F}
    }}, {{
      %z = stablehlo.negate %r#1 : {F}
      stablehlo.return %z : {F}
    }}) : (tensor<i32>) -> {F}
    %s:2 = "stablehlo.sort"(%k, %a) <{{dimension = 1 : i64}}> ({{
    ^bb0(%l0: tensor<f32>, %r0: tensor<f32>, %l1: tensor<f32>, %r1: tensor<f32>):
      %lt = stablehlo.compare LT, %l0, %r0 : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %lt : tensor<i1>
    }}) : ({F}, {F}) -> ({F}, {F})
    return %s#1, %r#0 : {F}, tensor<i32>""",
    f"%a: {F}",
    f"{F}, tensor<i32>",
)


def _xla_forms(copy: str, fusion_start: str, fusion_end: str) -> str:
    return f"""
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %0 = {copy} %a : {F}
    {fusion_start.format(result="%1", operand="%0", inner="%p")}
      %p1 = stablehlo.multiply %p, %p : {F}
    {fusion_end.format(inner="%p1", result="%1")}
    %r:2 = stablehlo.while(%i = %zero, %x = %1) : tensor<i32>, {F}
    cond {{
      %three = stablehlo.constant dense<3> : tensor<i32>
      %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %n = stablehlo.add %i, %one : tensor<i32>
      %y = {copy} %x : {F}
      {fusion_start.format(result="%z", operand="%y", inner="%q")}
        %q1 = stablehlo.add %q, %1 : {F}
      {fusion_end.format(inner="%q1", result="%z")}
      stablehlo.return %n, %z : tensor<i32>, {F}
    }}
    %2 = stablehlo.tanh %r#1 : {F}
    return %2, %1 : {F}, {F}"""


COPIES_AND_FUSIONS = alone(
    _xla_forms(
        "mhlo.copy",
        '{result} = "mhlo.fusion"({operand}) <{{fusion_kind = #mhlo<fusion_kind kLoop>}}> ({{\n'
        f"^bb0({{inner}}: {F}):",
        f"mhlo.return {{inner}} : {F}\n}}}}) : ({F}) -> {F}",
    ),
    f"%a: {F}",
    f"{F}, {F}",
    reference=_xla_forms(
        "stablehlo.optimization_barrier",
        f"{{inner}} = stablehlo.optimization_barrier {{operand}} : {F}",
        f"{{result}} = stablehlo.optimization_barrier {{inner}} : {F}",
    ),
)

BITCASTS = alone(
    """
    %0 = mhlo.bitcast %a {source_layout = dense<[0, 1]> : tensor<2xindex>, \
result_layout = dense<[1, 0]> : tensor<2xindex>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %1 = mhlo.bitcast %a {source_layout = dense<[1, 0]> : tensor<2xindex>, \
result_layout = dense<[0, 1]> : tensor<2xindex>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %2 = mhlo.bitcast %b {source_layout = dense<[0, 2, 1]> : tensor<3xindex>, \
result_layout = dense<[1, 0]> : tensor<2xindex>} : (tensor<2x3x4xf32>) -> tensor<4x6xf32>
    %3 = "mhlo.bitcast"(%a) : (tensor<2x3xf32>) -> tensor<2x3xi32>
    %4 = "mhlo.bitcast"(%a) : (tensor<2x3xf32>) -> tensor<12xui16>
    %5 = "mhlo.bitcast"(%4) : (tensor<12xui16>) -> tensor<3x2xf32>
    %6 = "mhlo.bitcast"(%a) : (tensor<2x3xf32>) -> tensor<2x3x2xui16>
    %7 = "mhlo.bitcast"(%s) : (tensor<f32>) -> tensor<1x1xf32>
    return %0, %1, %2, %3, %4, %5, %6, %7 : tensor<3x2xf32>, tensor<2x3xf32>, tensor<4x6xf32>, \
tensor<2x3xi32>, tensor<12xui16>, tensor<3x2xf32>, tensor<2x3x2xui16>, tensor<1x1xf32>""",
    "%a: tensor<2x3xf32>, %b: tensor<2x3x4xf32>, %s: tensor<f32>",
    "tensor<3x2xf32>, tensor<2x3xf32>, tensor<4x6xf32>, tensor<2x3xi32>, tensor<12xui16>, "
    "tensor<3x2xf32>, tensor<2x3x2xui16>, tensor<1x1xf32>",
    reference="""
    %t = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %0 = stablehlo.reshape %t : (tensor<3x2xf32>) -> tensor<3x2xf32>
    %w = stablehlo.reshape %a : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %1 = stablehlo.transpose %w, dims = [1, 0] : (tensor<3x2xf32>) -> tensor<2x3xf32>
    %u = stablehlo.transpose %b, dims = [1, 2, 0] : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
    %2 = stablehlo.reshape %u : (tensor<3x4x2xf32>) -> tensor<4x6xf32>
    %3 = stablehlo.bitcast_convert %a : (tensor<2x3xf32>) -> tensor<2x3xi32>
    %6 = stablehlo.bitcast_convert %a : (tensor<2x3xf32>) -> tensor<2x3x2xui16>
    %4 = stablehlo.reshape %6 : (tensor<2x3x2xui16>) -> tensor<12xui16>
    %5 = stablehlo.reshape %a : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %7 = stablehlo.reshape %s : (tensor<f32>) -> tensor<1x1xf32>
    return %0, %1, %2, %3, %4, %5, %6, %7 : tensor<3x2xf32>, tensor<2x3xf32>, tensor<4x6xf32>, \
tensor<2x3xi32>, tensor<12xui16>, tensor<3x2xf32>, tensor<2x3x2xui16>, tensor<1x1xf32>""",
)

COLLECTIVES = together(
    main_function(
        f"""
    {all_reduce("%0", "%a", kind=F, groups=((0, 2), (1, 3)))}
    %1 = stablehlo.tanh %0 : {F}
    %2 = "stablehlo.all_gather"(%1) <{{all_gather_dim = 0 : i64, {CHANNEL}, {GLOBAL}}}> : \
({F}) -> tensor<16x8xf32>
    %3 = "stablehlo.reduce_scatter"(%2) <{{scatter_dimension = 0 : i64, {CHANNEL}, {GLOBAL}}}> \
{ADD_BODY} : (tensor<16x8xf32>) -> {F}
    %4 = "stablehlo.all_to_all"(%3) <{{{CHANNEL}, concat_dimension = 1 : i64, replica_groups = \
dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}}> : \
({F}) -> tensor<1x32xf32>
    %5 = "stablehlo.collective_permute"(%4) <{{{CHANNEL}, source_target_pairs = \
dense<[[0, 1], [1, 2], [2, 0]]> : tensor<3x2xi64>}}> : (tensor<1x32xf32>) -> tensor<1x32xf32>
    %6 = stablehlo.add %5, %4 : tensor<1x32xf32>
    return %6, %1 : tensor<1x32xf32>, {F}""",
        arguments=f"%a: {F}",
        results=f"tensor<1x32xf32>, {F}",
    )
)

_HELPER = f"""
func.func private @reduced(%x: {F}) -> {F} {{
    %h = stablehlo.tanh %x : {F}
    {all_reduce("%g", "%h", kind=F)}
    return %g : {F}
}}
"""


def _control(call: str) -> str:
    return _HELPER + main_function(
        f"""
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0 = call @reduced(%a) : ({F}) -> {F}
    %r:2 = stablehlo.while(%i = %zero, %x = %0) : tensor<i32>, {F}
    cond {{
      %three = stablehlo.constant dense<3> : tensor<i32>
      %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %n = stablehlo.add %i, %one : tensor<i32>
      %y = func.call @reduced(%x) : ({F}) -> {F}
      %z = stablehlo.add %y, %a : {F}
      stablehlo.return %n, %z : tensor<i32>, {F}
    }}
    %k = "stablehlo.case"(%zero) ({{
      {all_reduce("%b0", "%r#1", kind=F)}
      stablehlo.return %b0 : {F}
    }}, {{
      stablehlo.return %r#1 : {F}
    }}) : (tensor<i32>) -> {F}
    {call}
    return %s, %r#0 : {F}, tensor<i32>""",
        arguments=f"%a: {F}",
        results=f"{F}, tensor<i32>",
    )


CONTROL = together(
    _control(f"""%b = "stablehlo.async_start"(%k) ({{
    ^bb0(%q: {F}):
      {all_reduce("%q0", "%q", kind=F)}
      stablehlo.return %q0 : {F}
    }}) : ({F}) -> !stablehlo.future<{F}>
    %s = "stablehlo.async_done"(%b) : (!stablehlo.future<{F}>) -> {F}"""),
    reference=_control(all_reduce("%s", "%k", kind=F)),
)

CASES = {
    "elementwise": ELEMENTWISE,
    "loops": LOOPS,
    "copies_and_fusions": COPIES_AND_FUSIONS,
    "bitcasts": BITCASTS,
    "collectives": COLLECTIVES,
    "control": CONTROL,
}
