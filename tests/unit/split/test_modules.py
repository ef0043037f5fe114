from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hespas.frontend.load import load_source
from hespas.program.program import Program
from hespas.split.modules import canonical_text, region_modules, stablehlo_text
from hespas.split.options import SplitOptions, SplitStrategy
from hespas.split.regions import RegionGraph
from hespas.split.strategies import split_options, split_program
from hlo_programs import ADD, module, read_hlo
from programs import (
    ADD_BODY,
    VECTOR,
    all_reduce,
    check_verifies,
    main_function,
    on_devices,
    settled,
    vector_main,
)
from workloads import published, workload

ROOT = Path(__file__).parents[3]
INDIVIDUAL = SplitOptions(strategy=SplitStrategy.INDIVIDUAL)


def graph_of(text: str, options: SplitOptions = INDIVIDUAL) -> tuple[RegionGraph, Program]:
    program = settled(text)
    return split_program(program, options), program


def fingerprints(text: str, options: SplitOptions = INDIVIDUAL) -> list[str]:
    modules = region_modules(graph_of(text, options)[0])
    return [modules.modules[at].fingerprint for at in modules.module_of_region]


def _example(name: str) -> bytes:
    return (ROOT / "examples" / name).read_bytes()


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (_example, "llama3_100m_fsdp4.mlir"),
        (published, "resnet_50_train_step_4_devices_1024_batch.mlir"),
        (published, "resnet_50_inference_step_4_devices_1024_batch.mlir"),
        (workload, "tiny_8dev_fsdp4tp2.mlir"),
    ],
)
@pytest.mark.parametrize("options", [SplitOptions(), INDIVIDUAL], ids=["linear", "individual"])
def test_every_region_of_the_workloads_stands_on_its_own(
    read: Callable[[str], bytes], name: str, options: SplitOptions
) -> None:
    program = load_source(read(name), name=name)
    graph = split_program(program, options)
    for region_module in region_modules(graph).modules:
        text = stablehlo_text(graph.regions[region_module.first_region], program)
        assert "mhlo.copy" not in text
        check_verifies(text)
        check_verifies(region_module.canonical_text)


def test_the_module_of_a_region_in_full() -> None:
    body = f"""
    %c = stablehlo.constant dense<2.0> : {VECTOR}
    %0 = stablehlo.multiply %a, %c : {VECTOR}
    {all_reduce("%r", "%0", channel=17)}"""
    graph, program = graph_of(on_devices(vector_main(body)))
    assert [canonical_text(region, program) for region in graph.regions] == [
        (
            "module {\n"
            "  func.func public @main(%arg0: tensor<8xf32>) -> (tensor<8xf32>) {\n"
            '    %0 = "stablehlo.constant"() {value = dense<2.000000e+00> : tensor<8xf32>} : '
            "() -> tensor<8xf32>\n"
            '    %1 = "stablehlo.multiply"(%arg0, %0) : (tensor<8xf32>, tensor<8xf32>) -> '
            "tensor<8xf32>\n"
            "    return %1 : tensor<8xf32>\n"
            "  }\n"
            "}\n"
        ),
        (
            "module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {\n"
            "  func.func public @main(%arg0: tensor<8xf32>) -> (tensor<8xf32>) {\n"
            '    %0 = "stablehlo.all_reduce"(%arg0) ({\n'
            "    ^bb0(%b1_0: tensor<f32>, %b1_1: tensor<f32>):\n"
            '      %2 = "stablehlo.add"(%b1_0, %b1_1) : (tensor<f32>, tensor<f32>) -> tensor<f32>\n'
            '      "stablehlo.return"(%2) : (tensor<f32>) -> ()\n'
            "    }) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, "
            "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids} : "
            "(tensor<8xf32>) -> tensor<8xf32>\n"
            "    return %0 : tensor<8xf32>\n"
            "  }\n"
            "}\n"
        ),
    ]


ONE = f"""
    %0 = stablehlo.abs %a : {VECTOR}
    %1 = stablehlo.add %0, %a : {VECTOR}
    {all_reduce("%r", "%1", channel=3)}"""
SAME = f"""
    %x = stablehlo.negate %a : {VECTOR}
    {all_reduce("%before", "%x", channel=8)}
    %p = stablehlo.abs %before : {VECTOR}
    %q = stablehlo.add %p, %before : {VECTOR}
    {all_reduce("%r", "%q", channel=12)}"""


def test_equal_regions_of_different_programs_share_a_fingerprint() -> None:
    options = SplitOptions()
    one = fingerprints(on_devices(vector_main(ONE)), options)
    two = fingerprints(on_devices(vector_main(SAME)).replace("%a", "%given"), options)
    assert one == two[2:]
    assert two[1] == two[3]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("stablehlo.abs", "stablehlo.sine"),
        ("tensor<8xf32>", "tensor<9xf32>"),
        ("stablehlo.add %0, %a", "stablehlo.add %0, %0"),
        ("return %r : tensor<8xf32>", "return %0 : tensor<8xf32>"),
    ],
)
def test_different_regions_have_different_fingerprints(old: str, new: str) -> None:
    text = on_devices(vector_main(ONE))
    assert old in text
    options = SplitOptions()
    assert fingerprints(text, options)[0] != fingerprints(text.replace(old, new), options)[0]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("slice %a [0:4:1] : (tensor<8xf32>) ->", "slice %a [0:8:2] : (tensor<8xf32>) ->"),
        ("iota dim = 0 :", "iota dim = 1 :"),
    ],
)
def test_attributes_count(one: str, two: str) -> None:
    def mark(line: str) -> str:
        kind = "tensor<4xf32>" if line.startswith("slice") else "tensor<4x4xf32>"
        body = f"%r = stablehlo.{line} {kind}\nreturn %r : {kind}"
        return fingerprints(main_function(body, arguments=f"%a: {VECTOR}", results=kind))[0]

    assert mark(one) != mark(two)


@pytest.mark.parametrize("kept", ["%2#0", "%2#1"])
def test_which_of_the_results_are_used_counts(kept: str) -> None:
    def marks(result: str) -> list[str]:
        body = f"""
    %2:2 = stablehlo.optimization_barrier %a, %a : {VECTOR}, {VECTOR}
    %r = stablehlo.abs {result} : {VECTOR}"""
        return fingerprints(vector_main(body))

    other = "%2#1" if kept == "%2#0" else "%2#0"
    assert marks(kept)[0] != marks(other)[0]
    assert marks(kept)[1] == marks(other)[1]


def test_groups_count_but_not_how_they_are_spelt() -> None:
    listed = all_reduce("%r", "%a", groups=((0, 1), (2, 3)))
    mesh = 'sdy.mesh @m = <["x"=2, "y"=2]>\n'
    spelt = listed.replace(
        "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>",
        '#stablehlo.replica_group_mesh_axes<mesh = @m, axes = [#stablehlo.axis_ref<name = "y">]>',
    )
    (one,) = fingerprints(on_devices(vector_main(listed)))
    (two,) = fingerprints(on_devices(mesh + vector_main(spelt)))
    (other,) = fingerprints(on_devices(vector_main(all_reduce("%r", "%a"))))
    assert one == two != other


def test_unequal_groups_are_padded() -> None:
    text = all_reduce("%r", "%a").replace(
        "dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>",
        "dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>",
    )
    graph, program = graph_of(on_devices(vector_main(text)))
    printed = stablehlo_text(graph.regions[0], program)
    assert "dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>" in printed
    check_verifies(printed)


def test_device_counts_stand_where_they_matter() -> None:
    query = "%p = stablehlo.partition_id : tensor<ui32>\n%r = stablehlo.abs %a : " + VECTOR
    loop = f"""
    %true = stablehlo.constant dense<true> : tensor<i1>
    %r = "stablehlo.if"(%true) ({{
      %p = stablehlo.replica_id : tensor<ui32>
      stablehlo.return %a : {VECTOR}
    }}, {{
      stablehlo.return %a : {VECTOR}
    }}) : (tensor<i1>) -> {VECTOR}"""
    for body, expected in ((query, [True, False]), (loop, [True])):
        graph, program = graph_of(on_devices(vector_main(body)))
        texts = [canonical_text(region, program) for region in graph.regions]
        assert ["mhlo.num_partitions = 4" in text for text in texts] == expected


def test_helpers_come_with_the_region_and_with_what_they_call() -> None:
    helpers = """
    func.func private @"inner most"(%x: tensor<f32>) -> tensor<f32> {
      %0 = stablehlo.abs %x : tensor<f32>
      return %0 : tensor<f32>
    }
    func.func private @helper(%x: tensor<f32>) -> tensor<f32> {
      %0 = call @"inner most"(%x) : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }
    """
    body = f"""
    %0 = stablehlo.tanh %a : {VECTOR}
    %r = stablehlo.custom_call @thing(%0) {{called_computations = [@helper]}} : \
({VECTOR}) -> {VECTOR}"""
    graph, program = graph_of(on_devices(helpers + vector_main(body)))
    plain, custom = (stablehlo_text(region, program) for region in graph.regions)
    assert "func.func private" not in plain
    assert custom.index("@helper(") < custom.index('@"inner most"(')
    check_verifies(custom)


def test_bytes_are_the_same_every_time() -> None:
    texts = [
        [stablehlo_text(region, program) for region in graph.regions]
        for graph, program in (graph_of(on_devices(vector_main(SAME))) for _ in range(2))
    ]
    assert texts[0] == texts[1]


def test_loops_that_run_differently_often_are_different_regions() -> None:
    def loop(name: str, start: str) -> str:
        return f"""
    %{name}:2 = stablehlo.while(%i = {start}, %x = %a) : tensor<i32>, {VECTOR}
    cond {{
      %limit = stablehlo.constant dense<9> : tensor<i32>
      %c = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %y = stablehlo.tanh %x : {VECTOR}
      stablehlo.return %j, %y : tensor<i32>, {VECTOR}
    }}"""

    body = f"""
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %five = stablehlo.constant dense<5> : tensor<i32>
    %from0 = stablehlo.reshape %zero : (tensor<i32>) -> tensor<i32>
    %from5 = stablehlo.reshape %five : (tensor<i32>) -> tensor<i32>
    {loop("p", "%from0")}
    {loop("q", "%from5")}
    {loop("s", "%from0")}
    %0 = stablehlo.add %p#1, %q#1 : {VECTOR}
    %r = stablehlo.add %0, %s#1 : {VECTOR}"""
    graph, _ = graph_of(vector_main(body))
    loops = [region.id for region in graph.compute_regions if region.operations[0].kind == "while"]
    modules = region_modules(graph)
    first, second, third = (modules.module_of_region[number] for number in loops)
    assert first == third != second
    assert "// runs 9 times" in modules.modules[first].canonical_text
    assert "// runs 4 times" in modules.modules[second].canonical_text


def test_a_region_without_outputs_is_a_module_too() -> None:
    body = f"stablehlo.custom_call @effect(%a) {{has_side_effect = true}} : ({VECTOR}) -> ()"
    graph, program = graph_of(vector_main(body, result="%a"))
    check_verifies(stablehlo_text(graph.regions[0], program))
    assert graph.regions[0].outputs == ()


def test_variadic_collectives() -> None:
    body = f"""
    %0:2 = "stablehlo.all_reduce"(%a, %a) <{{replica_groups = dense<[[0]]> : tensor<1x1xi64>}}> \
{ADD_BODY} : ({VECTOR}, {VECTOR}) -> ({VECTOR}, {VECTOR})
    %r = stablehlo.add %0#0, %0#1 : {VECTOR}"""
    graph, program = graph_of(vector_main(body))
    for region in graph.regions:
        check_verifies(stablehlo_text(region, program))


# Regions of compiled programs, as modules.

FUSED = """
fused {
  a = f32[4,8]{0,1} parameter(0)
  c = f32[4,8]{1,0} copy(a)
  z = f32[] constant(0)
  b = f32[4,8]{1,0} broadcast(z), dimensions={}
  ROOT m = f32[4,8]{1,0} maximum(c, b)
}

viewed {
  a = f32[4,8]{0,1} parameter(0)
  b = f32[2,16]{1,0} bitcast(a)
  ROOT t = f32[2,16]{1,0} tanh(b)
}
"""
SCATTERED = "replica_groups={{0,1}}, dimensions={0}, to_apply=add"


def hlo_program(lines: str) -> Program:
    return read_hlo(
        module(lines, computations=ADD + FUSED, header="is_scheduled=true, replica_count=2")
    )


def texts_of(program: Program) -> list[tuple[str, str]]:
    graph = split_program(
        program,
        split_options(
            strategy="linear_split",
            merge=False,
            block_limit=None,
            separator="is_communication_op",
            separator_policy="isolated",
        ),
    )
    return [
        (each.canonical_text, stablehlo_text(graph.regions[each.first_region], program))
        for each in region_modules(graph).modules
    ]


KERNELS = {
    "fusion of a transposed operand": "ROOT f = f32[4,8] fusion(p), kind=kLoop, calls=fused",
    "fusion of another view": "ROOT f = f32[2,16] fusion(p), kind=kLoop, calls=viewed",
    "combined reduce-scatter": (
        "c = f32[4,8]{1,0} copy(p)\n"
        f"s = (f32[2,8], f32[2,8]) reduce-scatter(c, c), {SCATTERED}\n"
        "ROOT r = f32[2,8] get-tuple-element(s), index=1"
    ),
    "all-to-all": ("ROOT a = f32[4,8]{0,1} all-to-all(p), replica_groups={{0,1}}, dimensions={0}"),
    "call in place": (
        'c = (f32[4,8], s8[16]) custom-call(p), custom_call_target="x", '
        "output_to_operand_aliasing={{0}: (0, {})}\n"
        "ROOT r = f32[4,8] get-tuple-element(c), index=0"
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_regions_are_valid_stablehlo(name: str) -> None:
    texts = texts_of(hlo_program(f"p = f32[4,8]{{0,1}} parameter(0)\n{KERNELS[name]}"))

    assert texts
    for _, stablehlo in texts:
        check_verifies(stablehlo)
        assert '"mhlo.' not in stablehlo
        assert "order" not in stablehlo


def test_kernels_that_differ_by_a_layout_are_reported_apart() -> None:
    first, second = (
        texts_of(
            hlo_program(f"p = f32[4,8]{layout} parameter(0)\nROOT t = f32[4,8]{layout} tanh(p)")
        )
        for layout in ("{1,0}", "{0,1}")
    )
    assert first[0][0] != second[0][0]
    assert "order = [0, 1]" in second[0][0]


def test_kernels_that_differ_by_names_are_equal() -> None:
    texts = texts_of(
        hlo_program(
            "p = f32[4,8]{0,1} parameter(0)\nq = f32[4,8]{0,1} parameter(1)\n"
            'f = f32[4,8] fusion(p), kind=kLoop, calls=fused, metadata={op_name="x"}\n'
            'g = f32[4,8] fusion(q), kind=kLoop, calls=fused, metadata={op_name="y"}\n'
            "ROOT r = (f32[4,8], f32[4,8]) tuple(f, g)"
        )
    )
    assert len(texts) == 1
