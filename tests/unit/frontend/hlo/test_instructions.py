from __future__ import annotations

import pytest

from hespas.errors import ConfigError, ProgramError
from hespas.frontend.hlo.load import read_hlo as read_module
from hespas.frontend.overrides import NO_OPTIONS, LoadOptions
from hespas.program.attrs import (
    CallAttrs,
    CaseAttrs,
    CustomCallAttrs,
    FusionAttrs,
    InPlace,
    WhileAttrs,
)
from hespas.program.program import Op, Program
from hespas.xla.hlo.module import HloModule, read_hlo_module
from hlo_programs import entry_op, entry_ops, module, read_hlo

_COUNTED = """
body {
  carried = (s32[], f32[4]) parameter(0)
  at = s32[] get-tuple-element(carried), index=0
  moved = s32[] copy(at)
  one = s32[] constant(1)
  next = s32[] add(moved, one)
  x = f32[4] get-tuple-element(carried), index=1
  y = f32[4] tanh(x)
  ROOT out = (s32[], f32[4]) tuple(next, y)
}

condition {
  carried = (s32[], f32[4]) parameter(0)
  at = s32[] get-tuple-element(carried), index=0
  last = s32[] constant(LIMIT)
  ROOT less = pred[] compare(at, last), direction=LT
}
"""
_LOOP = """
  zero = s32[] constant(0)
  p = f32[4] parameter(0)
  start = (s32[], f32[4]) tuple(zero, p)
  w = (s32[], f32[4]) while(start), condition=condition, body=bodyCONFIG
  ROOT r = f32[4] get-tuple-element(w), index=1
"""


def _loop(limit: str = "12", config: str = "", options: LoadOptions | None = None) -> Program:
    computations = _COUNTED.replace("LIMIT", limit)
    if limit == "p":
        computations = computations.replace("s32[] constant(p)", "s32[] get-dimension-size(x)")
    entry = _LOOP.replace("CONFIG", config)
    return read_hlo(module(entry, computations=computations), options=options or LoadOptions())


def _only(program: Program, kind: str) -> Op:
    (op,) = [op for op in program.main.body.operations if op.kind == kind]
    return op


def test_a_loop_carries_its_values_apart() -> None:
    program = _loop()
    loop = _only(program, "while")
    condition, body = loop.regions

    assert len(loop.operands) == len(loop.results) == len(body.arguments) == 2
    assert len(condition.arguments) == 2
    assert program.main.results == (loop.results[1],)


def test_a_trip_count_is_read_off_through_copies() -> None:
    assert _only(_loop("12"), "while").attrs == WhileAttrs(trip_count=12)


_FUSED_COUNTING = """
compared {
  at = s32[] parameter(0)
  last = s32[] constant(12)
  ROOT less = pred[] compare(at, last), direction=LT
}

advanced {
  one = s32[] parameter(0)
  at = s32[] parameter(1)
  ROOT next = s32[] add(at, one)
}

body {
  carried = (s32[], f32[4]) parameter(0)
  at = s32[] get-tuple-element(carried), index=0
  step = s32[] constant(3)
  next = s32[] fusion(step, at), kind=kLoop, calls=advanced
  x = f32[4] get-tuple-element(carried), index=1
  y = f32[4] tanh(x)
  ROOT out = (s32[], f32[4]) tuple(next, y)
}

condition {
  carried = (s32[], f32[4]) parameter(0)
  at = s32[] get-tuple-element(carried), index=0
  ROOT less = pred[] fusion(at), kind=kLoop, calls=compared
}
"""


def test_a_trip_count_is_read_off_through_fusions() -> None:
    entry = _LOOP.replace("CONFIG", "")
    program = read_hlo(module(entry, computations=_FUSED_COUNTING))
    assert _only(program, "while").attrs == WhileAttrs(trip_count=4)


@pytest.mark.parametrize(
    "known", ['{"known_trip_count":{"n":"32"}}', '{"known_trip_count":{"n":32},"other":[]}']
)
def test_a_compiler_that_knows_the_trip_count_is_believed(known: str) -> None:
    loop = _only(_loop(config=f", backend_config={known}"), "while")
    assert loop.attrs == WhileAttrs(trip_count=32)


def test_a_user_names_a_loop_by_its_instruction() -> None:
    program = _loop(options=LoadOptions(trip_counts={"w": 5}))
    assert _only(program, "while").attrs == WhileAttrs(trip_count=5)
    assert program.assumptions == ("%w: the loop runs 5 times, as the user says",)


def test_a_loop_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no loop on instruction v; instructions of a loop: w"):
        _loop(options=LoadOptions(trip_counts={"v": 5}))


_BRANCHES = """
left {
  a = (f32[4], f32[4]) parameter(0)
  x = f32[4] get-tuple-element(a), index=1
  ROOT t = f32[4] tanh(x)
}

right {
  b = f32[4] parameter(0)
  ROOT n = f32[4] negate(b)
}
"""
_INDEX = "p = s32[] parameter(0)", "conditional(p, both, x), branch_computations={left, right}"
_PREDICATE = (
    "p = pred[] parameter(0)",
    "conditional(p, both, x), true_computation=left, false_computation=right",
)


@pytest.mark.parametrize(("spelling", "kind"), [(_INDEX, "case"), (_PREDICATE, "if")])
def test_branches_take_their_values_from_around_them(spelling: tuple[str, str], kind: str) -> None:
    parameter, conditional = spelling
    op = entry_op(
        f"""
        {parameter}
        x = f32[4] parameter(1)
        y = f32[4] parameter(2)
        both = (f32[4], f32[4]) tuple(x, y)
        ROOT c = f32[4] {conditional}
        """,
        computations=_BRANCHES,
    )
    assert op.kind == kind
    assert len(op.operands) == 1
    assert [region.arguments for region in op.regions] == [(), ()]
    assert [region.operations[0].kind for region in op.regions] == ["tanh", "negate"]


def test_a_user_weighs_branches() -> None:
    parameter, conditional = _INDEX
    entry = (
        f"{parameter}\nx = f32[4] parameter(1)\nboth = (f32[4], f32[4]) tuple(x, x)\n"
        f"ROOT c = f32[4] {conditional}"
    )
    options = LoadOptions(branch_weights={"c": (0.25, 0.75)})
    program = read_hlo(module(entry, computations=_BRANCHES), options=options)
    assert _only(program, "case").attrs == CaseAttrs(weights=(0.25, 0.75))


@pytest.mark.parametrize(("false_first", "weights"), [(False, (0.25, 0.75)), (True, (0.75, 0.25))])
def test_weights_of_a_predicate_are_of_true_first_unless_a_case_was_compiled(
    false_first: bool, weights: tuple[float, float]
) -> None:
    parameter, conditional = _PREDICATE
    entry = (
        f"{parameter}\nx = f32[4] parameter(1)\nboth = (f32[4], f32[4]) tuple(x, x)\n"
        f"ROOT c = f32[4] {conditional}"
    )
    options = LoadOptions(branch_weights={"c": (0.25, 0.75)}, false_first=false_first)
    program = read_hlo(module(entry, computations=_BRANCHES), options=options)
    assert _only(program, "if").attrs == CaseAttrs(weights=weights)
    assert ("(false, true)" if false_first else "(true, false)") in program.assumptions[0]


def test_a_called_computation_is_a_function() -> None:
    program = read_hlo(
        module(
            "p = f32[4] parameter(0)\na = f32[4] call(p), to_apply=right\n"
            "ROOT b = f32[4] call(a), to_apply=right",
            computations=_BRANCHES,
        )
    )
    assert set(program.functions) == {"main", "right"}
    assert [op.attrs for op in program.main.body.operations[:-1]] == [CallAttrs(callee="right")] * 2
    assert program.functions["right"].body.operations[-1].name == "func.return"


def test_a_fusion_keeps_its_kind_and_what_decides_its_kernel() -> None:
    body = "fused {\n  a = f32[4] parameter(0)\n  ROOT t = f32[4] tanh(a)\n}\n"
    config = (
        '{"operation_queue_id":"0","fusion_backend_config":{"kind":"__triton"},'
        '"reification_cost":[{"exec_time_us":3}]}'
    )
    op = entry_op(
        "p = f32[4] parameter(0)\nROOT f = f32[4] fusion(p), kind=kCustom, calls=fused, "
        f"output_to_operand_aliasing={{{{}}: (0, {{}})}}, backend_config={config}",
        computations=body,
    )
    assert op.attrs == FusionAttrs(
        kind="kCustom",
        backend_kind="__triton",
        backend_config='{"fusion_backend_config":{"kind":"__triton"}}',
        in_place=(InPlace(result=0, operand=0),),
    )
    assert "reification_cost" not in str(op.attributes)


def test_a_library_call_keeps_its_window() -> None:
    op = entry_op(
        """
        x = f32[8,16,16,4] parameter(0)
        w = f32[8,3,3,4] parameter(1)
        c = (f32[8,8,8,8], u8[0]) custom-call(x, w), window={size=3x3 stride=2x2 pad=0_1x0_1},
          dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward"
        ROOT r = f32[8,8,8,8] get-tuple-element(c), index=0
        """
    )
    assert isinstance(op.attrs, CustomCallAttrs)
    window = op.attrs.convolution
    assert window is not None
    assert (window.strides, window.padding) == ((2, 2), ((0, 1), (0, 1)))
    assert (window.kernel_output_feature, window.kernel_spatial) == (0, (1, 2))


def test_top_k_is_the_custom_call_of_that_name() -> None:
    op = entry_op(
        "p = f32[4,64] parameter(0)\nROOT t = (f32[4,8], s32[4,8]) topk(p), k=8, largest=true"
    )
    assert isinstance(op.attrs, CustomCallAttrs)
    assert (op.attrs.target, len(op.results)) == ("TopK", 2)


def test_operations_of_one_computation_do_not_leak_into_another() -> None:
    first, second = entry_ops(
        "p = f32[4] parameter(0)\na = f32[4] call(p), to_apply=right\nROOT b = f32[4] negate(a)",
        computations=_BRANCHES,
    )
    assert second.operands == first.results


def test_a_cycle_of_calls_is_an_error() -> None:
    source = module(
        "p = f32[4] parameter(0)\nROOT a = f32[4] call(p), to_apply=right", computations=_BRANCHES
    )
    message = read_hlo_module(source.encode(), name="a.hlo").message
    entry = next(computation for computation in message.computations if computation.name == "main")
    right = next(computation for computation in message.computations if computation.name == "right")
    negate = next(
        instruction for instruction in right.instructions if instruction.opcode == "negate"
    )
    negate.opcode = "call"
    negate.called_computation_ids.append(entry.id)

    with pytest.raises(ProgramError, match="computation main calls itself"):
        read_module(
            HloModule(message=message, replicas=1, partitions=1), name="a.hlo", options=NO_OPTIONS
        )
