from __future__ import annotations

import pytest

from hespas.errors import ProgramError, UnpartitionedError, UnsupportedError
from hespas.frontend.hlo.load import read_hlo as read_module
from hespas.frontend.overrides import NO_OPTIONS
from hespas.memory.usage import memory_use
from hespas.program.attrs import BitcastAttrs, ConstantAttrs, DotAttrs
from hespas.program.program import Alias
from hespas.program.types import TensorType
from hespas.xla.hlo.module import HloModule, read_hlo_module
from hlo_programs import ADD, NAME, entry_op, entry_ops, module, read_hlo


def test_tuples_are_gone_and_values_flow_directly() -> None:
    program = read_hlo(
        module(
            """
            p = (f32[4], (f32[8], f32[2])) parameter(0)
            q = f32[4] parameter(1)
            inner = (f32[8], f32[2]) get-tuple-element(p), index=1
            eight = f32[8] get-tuple-element(inner), index=0
            two = f32[2] get-tuple-element(inner), index=1
            t = f32[8] tanh(eight)
            ROOT r = ((f32[8], f32[2]), f32[4]) tuple(inner, q)
            """
        )
    )
    main = program.main

    shapes = [
        value.type.shape for value in main.body.arguments if isinstance(value.type, TensorType)
    ]
    assert shapes == [(4,), (8,), (2,), (4,)]
    assert [op.kind for op in main.body.operations] == ["tanh", "return"]
    assert main.body.operations[0].operands == (main.body.arguments[1],)
    assert main.results == (
        main.body.arguments[1],
        main.body.arguments[2],
        main.body.arguments[3],
    )


def test_a_tuple_of_many_results_is_taken_apart() -> None:
    body = """
    fused {
      a = f32[4] parameter(0)
      n = f32[4] negate(a)
      e = f32[4] exponential(a)
      ROOT both = (f32[4], f32[4]) tuple(n, e)
    }
    """
    ops = entry_ops(
        """
        p = f32[4] parameter(0)
        f = (f32[4], f32[4]) fusion(p), kind=kLoop, calls=fused
        second = f32[4] get-tuple-element(f), index=1
        ROOT r = f32[4] tanh(second)
        """,
        computations=body,
    )
    fusion, tanh = ops
    assert tanh.operands == (fusion.results[1],)
    assert fusion.regions[0].operations[-1].name == "mhlo.return"


def test_operations_stand_in_the_order_of_the_schedule() -> None:
    source = module(
        """
        p = f32[4] parameter(0)
        b = f32[4] tanh(p)
        a = f32[4] negate(p)
        ROOT r = f32[4] add(a, b)
        """
    )
    program = read_hlo(source)
    assert [op.instruction for op in program.main.body.operations] == ["b", "a", "r", ""]
    assert program.is_scheduled
    assert not read_hlo(source.replace("is_scheduled=true", "replica_count=1")).is_scheduled


def test_aliases_count_flattened_results_and_arguments() -> None:
    aliases = "{0}: (1, {}, may-alias), {1}: (0, {1}, must-alias)"
    program = read_hlo(
        module(
            """
            p = (f32[2], f32[4]) parameter(0)
            q = f32[8] parameter(1)
            a = f32[4] get-tuple-element(p), index=1
            ROOT r = (f32[8], f32[4]) tuple(q, a)
            """,
            header=f"is_scheduled=true, input_output_alias={{ {aliases} }}",
        )
    )
    assert program.aliases == (Alias(result=0, argument=2), Alias(result=1, argument=1))


@pytest.mark.parametrize(
    ("shape", "layout", "space"),
    [
        ("f32[2,3]{1,0}", None, 0),
        ("f32[2,3]", None, 0),
        ("f32[2,3]{0,1}", (0, 1), 0),
        ("f32[2,3]{1,0:T(8,128)S(1)}", None, 1),
        ("f32[2,3]{1,0:S(1)}", None, 0),
        ("f32[2,3]{0,1:S(5)}", (0, 1), 5),
    ],
)
def test_layouts_and_memory_spaces(shape: str, layout: tuple[int, ...] | None, space: int) -> None:
    program = read_hlo(module(f"  ROOT p = {shape} parameter(0)"))
    (argument,) = program.main.body.arguments
    assert isinstance(argument.type, TensorType)
    assert (argument.type.layout, argument.type.memory_space) == (layout, space)


@pytest.mark.parametrize(
    ("shape", "allocated_bytes"),
    [
        ("f32[2,3]{1,0}", 2 * 3 * 4),
        ("f32[2,3]{1,0:T(8,128)}", 8 * 128 * 4),
        ("bf16[5,16,129]{2,1,0:T(8,128)(2,1)}", 5 * 16 * 256 * 2),
        ("bf16[5,16,129]{0,1,2:T(8,128)(2,1)}", 129 * 16 * 128 * 2),
        ("f32[]{:T(128)}", 128 * 4),
        ("s32[1025]{0:T(1024)}", 2048 * 4),
    ],
)
def test_tiles_take_their_memory_whole(shape: str, allocated_bytes: int) -> None:
    program = read_hlo(module(f"  ROOT p = {shape} parameter(0)"))
    (argument,) = program.main.body.arguments
    assert isinstance(argument.type, TensorType)
    assert argument.type.allocated_bytes == allocated_bytes
    assert memory_use(program).argument_bytes == allocated_bytes


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("pred", "i1"),
        ("s32", "i32"),
        ("u8", "ui8"),
        ("bf16", "bf16"),
        ("f8e4m3fn", "f8E4M3FN"),
        ("c64", "complex<f32>"),
        ("s4", "i4"),
    ],
)
def test_element_types(spelled: str, name: str) -> None:
    program = read_hlo(module(f"  ROOT p = {spelled}[4] parameter(0)"))
    assert str(program.main.body.arguments[0].type) == f"tensor<4x{name}>"


def test_equal_types_are_one_object() -> None:
    ops = entry_ops("  p = f32[4] parameter(0)\n  a = f32[4] tanh(p)\n  ROOT b = f32[4] negate(a)")
    assert ops[0].results[0].type is ops[1].results[0].type


def test_equal_fusions_share_one_body() -> None:
    bodies = "".join(
        f"fused.{name} {{\n  {name} = f32[4] parameter(0)\n  c.{name} = f32[] constant({value})\n"
        f"  b.{name} = f32[4] broadcast(c.{name}), dimensions={{}}\n"
        f"  ROOT r.{name} = f32[4] add({name}, b.{name})\n}}\n"
        for name, value in (("x", 1), ("y", 1), ("z", 2))
    )
    ops = entry_ops(
        """
        p = f32[4] parameter(0)
        a = f32[4] fusion(p), kind=kLoop, calls=fused.x
        b = f32[4] fusion(a), kind=kLoop, calls=fused.y
        ROOT c = f32[4] fusion(b), kind=kLoop, calls=fused.z
        """,
        computations=bodies,
    )
    assert ops[0].regions[0] is ops[1].regions[0]
    assert ops[1].regions[0] is not ops[2].regions[0]


def test_a_bitcast_keeps_both_layouts() -> None:
    op = entry_op("  p = f32[2,3]{0,1} parameter(0)\n  ROOT b = f32[3,2]{1,0} bitcast(p)")
    assert op.attrs == BitcastAttrs(source_layout=(0, 1), result_layout=None)


@pytest.mark.parametrize(
    ("literal", "value", "text"),
    [
        ("f32[] constant(1.5)", 1.5, "dense<1.5> : tensor<f32>"),
        ("bf16[] constant(-inf)", float("-inf"), "dense<0xFF80> : tensor<bf16>"),
        ("s32[] constant(-7)", -7, "dense<-7> : tensor<i32>"),
        ("pred[] constant(true)", True, "dense<true> : tensor<i1>"),
        ("u8[] constant(200)", 200, "dense<200> : tensor<ui8>"),
        ("f16[] constant(0.5)", 0.5, "dense<0.5> : tensor<f16>"),
        ("s32[2,2] constant({{1,2},{3,4}})", None, "dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>"),
        ("s32[2] constant({3,3})", 3, "dense<3> : tensor<2xi32>"),
    ],
)
def test_constants(literal: str, value: float | None, text: str) -> None:
    op = entry_op(f"  ROOT c = {literal}")
    assert op.attrs == ConstantAttrs(value=value)
    assert dict(op.attributes)["value"] == text


def test_large_constants_differ_by_their_contents() -> None:
    texts = {
        dict(entry_op(f"  ROOT c = s32[65] constant({{{', '.join(map(str, row))}}})").attributes)[
            "value"
        ]
        for row in (range(65), range(65), range(1, 66))
    }
    assert len(texts) == 2


def test_locations_name_the_operation_and_the_line() -> None:
    op = entry_op(
        "  p = f32[4] parameter(0)\n"
        '  ROOT t = f32[4] tanh(p), metadata={op_name="jit(f)/tanh" source_file="a.py"'
        " source_line=3}"
    )
    assert (op.scope, op.source_location) == ("jit(f)/tanh", "a.py:3")
    assert op.location == "jit(f)/tanh (a.py:3): stablehlo.tanh (%t)"


def test_a_fusion_without_a_name_has_that_nearest_to_its_root() -> None:
    """Fusions of several results; bodies that are equal but for their names are shared."""
    body = """
fused.LAYER {
  p = f32[4] parameter(0)
  t = f32[4] tanh(p), metadata={op_name="jit(f)/layers_LAYER/tanh"}
  n = f32[4] negate(t), metadata={op_name="jit(f)/layers_LAYER/neg"}
  ROOT r = (f32[4], f32[4]) tuple(t, n)
}
"""
    first, second = entry_ops(
        "  p = f32[4] parameter(0)\n"
        "  a = (f32[4], f32[4]) fusion(p), kind=kLoop, calls=fused.0\n"
        "  ROOT b = (f32[4], f32[4]) fusion(p), kind=kLoop, calls=fused.1",
        computations=body.replace("LAYER", "0") + body.replace("LAYER", "1"),
    )
    assert (first.scope, second.scope) == ("jit(f)/layers_0/neg", "jit(f)/layers_1/neg")
    assert first.regions[0] is second.regions[0]


def test_a_dot_names_its_dimensions_and_algorithm() -> None:
    op = entry_op(
        """
        a = f32[2,8,4] parameter(0)
        b = f32[2,4,16] parameter(1)
        ROOT d = f32[2,8,16] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0},
          lhs_contracting_dims={2}, rhs_contracting_dims={1},
          algorithm=dot_bf16_bf16_f32_x3
        """
    )
    assert op.name == "stablehlo.dot_general"
    assert isinstance(op.attrs, DotAttrs)
    assert (op.attrs.lhs_batching, op.attrs.rhs_contracting) == ((0,), (1,))
    assert "num_primitive_operations = 3" in op.attrs.algorithm


def test_an_instruction_that_only_orders_is_gone() -> None:
    ops = entry_ops(
        """
        p = f32[4] parameter(0)
        t = token[] after-all()
        d = f32[4] add-dependency(p, t)
        ROOT r = f32[4] tanh(d)
        """
    )
    assert [op.kind for op in ops] == ["after_all", "tanh"]


def test_a_reduction_has_its_body_as_region() -> None:
    op = entry_op(
        """
        p = f32[4,8] parameter(0)
        z = f32[] parameter(1)
        ROOT r = f32[4] reduce(p, z), dimensions={1}, to_apply=add
        """,
        computations=ADD,
    )
    assert [inner.name for inner in op.regions[0].operations] == [
        "stablehlo.add",
        "stablehlo.return",
    ]


@pytest.mark.parametrize(
    ("instruction", "said"),
    [
        ("f32[<=4] parameter(0)", "known only when it runs"),
        ("opaque[] parameter(0)", "element type opaque_type is not known"),
    ],
)
def test_types_without_a_model_are_errors(instruction: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        read_hlo(module(f"  ROOT p = {instruction}"))


def test_an_opcode_without_a_model_is_an_error_with_a_reason() -> None:
    with pytest.raises(UnsupportedError, match=r"%d: domain has no model: it is a note"):
        read_hlo(
            module(
                "  p = f32[4] parameter(0)\n"
                '  ROOT d = f32[4] domain(p), domain={kind="sharding", entry={maximal device=0},'
                " exit={maximal device=1}}"
            )
        )


_DIVIDED = "sharding={devices=[4]<=[4]}"
_UNPARTITIONED = {
    "marker": (
        '  p = f32[8] parameter(0)\n  s = f32[8] custom-call(p), custom_call_target="Sharding"\n'
        "  ROOT r = f32[8] tanh(s)"
    ),
    "instruction": f"  p = f32[8] parameter(0)\n  ROOT r = f32[8] tanh(p), {_DIVIDED}",
    "parameter": f"  p = f32[8] parameter(0), {_DIVIDED}\n  ROOT r = f32[8] tanh(p)",
}


@pytest.mark.parametrize("what", _UNPARTITIONED)
def test_a_program_that_is_not_partitioned_is_an_error(what: str) -> None:
    with pytest.raises(UnpartitionedError, match="sharded but not yet partitioned"):
        read_hlo(module(_UNPARTITIONED[what], header="num_partitions=4"))


@pytest.mark.parametrize("header", ["is_scheduled=true, num_partitions=4", "num_partitions=1"])
def test_parameters_keep_their_shardings_when_a_program_is_partitioned(header: str) -> None:
    assert read_hlo(module(_UNPARTITIONED["parameter"], header=header)).main.results


def test_a_partitioned_program_need_not_communicate() -> None:
    source = module(_UNPARTITIONED["parameter"], header="num_partitions=4")
    assert read_hlo(source.replace("ENTRY main", "ENTRY main.3_spmd")).main.results


def test_a_member_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ProgramError, match="has no member 0"):
        read_hlo(
            module("  p = f32[8] parameter(0)\n  ROOT g = f32[8] get-tuple-element(p), index=0")
        )


def test_an_instruction_without_its_operands_is_an_error() -> None:
    source = module("  p = f32[4] parameter(0)\n  ROOT b = f32[4] bitcast(p)")
    message = read_hlo_module(source.encode(), name=NAME).message
    (computation,) = message.computations
    bitcast = next(
        instruction for instruction in computation.instructions if instruction.opcode == "bitcast"
    )
    del bitcast.operand_ids[:]

    with pytest.raises(ProgramError, match=r"test\.hlo: %b: bitcast lacks something"):
        read_module(
            HloModule(message=message, replicas=1, partitions=1), name=NAME, options=NO_OPTIONS
        )


def test_a_schedule_of_instructions_that_are_not_there_is_an_error() -> None:
    source = module("  p = f32[4] parameter(0)\n  ROOT t = f32[4] tanh(p)")
    message = read_hlo_module(source.encode(), name=NAME).message
    for sequence in message.schedule.sequences.values():
        sequence.instruction_ids.append(12345)

    with pytest.raises(ProgramError, match="names instruction 12345, which it does not hold"):
        read_module(
            HloModule(message=message, replicas=1, partitions=1), name=NAME, options=NO_OPTIONS
        )


def test_a_convolution_written_by_its_forward_form_is_an_error() -> None:
    source = module(
        "  a = f32[2,8,8,4] parameter(0)\n  b = f32[3,3,4,16] parameter(1)\n"
        "  ROOT c = f32[2,6,6,16] convolution(a, b), window={size=3x3}, dim_labels=b01f_01io->b01f"
    )
    message = read_hlo_module(source.encode(), name=NAME).message
    (computation,) = message.computations
    next(
        instruction
        for instruction in computation.instructions
        if instruction.opcode == "convolution"
    ).conv_kind = 2

    with pytest.raises(UnsupportedError, match="kind convolution_kind_dgrad is not known"):
        read_module(
            HloModule(message=message, replicas=1, partitions=1), name=NAME, options=NO_OPTIONS
        )
