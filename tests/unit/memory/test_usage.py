"""The memory of programs before a compiler is at work, reckoned by hand."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.memory.buffers import Role
from hespas.memory.usage import MemoryUse, memory_use

KIB = 1024
"""The bytes of ``tensor<256xf32>``, which most values here are."""

VECTOR = "tensor<256xf32>"


def use(body: str, *, arguments: str, results: str) -> MemoryUse:
    text = f"func.func @main({arguments}) -> ({results}) {{\n{body}\n}}"
    return memory_use(load_source(text.encode(), name="here"))


def test_a_temporary_lives_until_it_is_read_last() -> None:
    # %0 and %1 at the multiplication; %0 is not written over, for it has a second reader.
    found = use(
        f"""%0 = stablehlo.dot %m, %a : (tensor<256x256xf32>, {VECTOR}) -> {VECTOR}
        %1 = stablehlo.dot %m, %0 : (tensor<256x256xf32>, {VECTOR}) -> {VECTOR}
        %2 = stablehlo.dot %m, %1 : (tensor<256x256xf32>, {VECTOR}) -> {VECTOR}
        %3 = stablehlo.dot %m, %2 : (tensor<256x256xf32>, {VECTOR}) -> {VECTOR}
        return %3 : {VECTOR}""",
        arguments=f"%m: tensor<256x256xf32>, %a: {VECTOR}",
        results=VECTOR,
    )
    assert found.argument_bytes == 257 * KIB
    assert found.output_bytes == KIB
    assert found.temporary_bytes == 2 * KIB
    assert found.peak_bytes == 260 * KIB
    assert found.peak_location == "here:3:14: stablehlo.dot"


def test_what_is_there_at_the_peak_stands_the_largest_first() -> None:
    found = use(
        f"""%0 = stablehlo.dot %m, %a : (tensor<256x256xf32>, {VECTOR}) -> {VECTOR}
        %1 = stablehlo.dot %m, %0 : (tensor<256x256xf32>, {VECTOR}) -> {VECTOR}
        return %1 : {VECTOR}""",
        arguments=f"%m: tensor<256x256xf32>, %a: {VECTOR}",
        results=VECTOR,
    )
    assert [(each.size_bytes, each.role, each.location) for each in found.held] == [
        (256 * KIB, Role.ARGUMENT, "argument 0"),
        (KIB, Role.ARGUMENT, "argument 1"),
        (KIB, Role.OUTPUT, "result 0"),
        (KIB, Role.TEMPORARY, "here:2:6: stablehlo.dot"),
    ]


@pytest.mark.parametrize(
    ("second", "temporaries"),
    [("stablehlo.negate %0", 1), ("stablehlo.reverse %0, dims = [0]", 2)],
)
def test_an_elementwise_result_is_written_over_its_dying_operand(
    second: str, temporaries: int
) -> None:
    found = use(
        f"""%0 = stablehlo.reverse %a, dims = [0] : {VECTOR}
        %1 = {second} : {VECTOR}
        %2 = stablehlo.reverse %1, dims = [0] : {VECTOR}
        return %2 : {VECTOR}""",
        arguments=f"%a: {VECTOR}",
        results=VECTOR,
    )
    assert found.temporary_bytes == temporaries * KIB


def test_an_argument_that_is_not_given_away_is_never_written_over() -> None:
    found = use(
        f"""%0 = stablehlo.negate %a : {VECTOR}
        %1 = stablehlo.reverse %0, dims = [0] : {VECTOR}
        return %1 : {VECTOR}""",
        arguments=f"%a: {VECTOR}",
        results=VECTOR,
    )
    assert found.temporary_bytes == KIB


@pytest.mark.parametrize("attribute", ["tf.aliasing_output = 0 : i32", "jax.buffer_donor = true"])
def test_an_output_over_an_argument_takes_no_memory(attribute: str) -> None:
    found = use(
        f"%0 = stablehlo.negate %a : {VECTOR}\nreturn %0 : {VECTOR}",
        arguments=f"%a: {VECTOR} {{{attribute}}}",
        results=VECTOR,
    )
    assert (found.argument_bytes, found.output_bytes, found.alias_bytes) == (KIB, KIB, KIB)
    assert found.peak_bytes == KIB


def test_an_output_waits_for_the_argument_that_it_is_written_over() -> None:
    found = use(
        f"""%0 = stablehlo.negate %a : {VECTOR}
        %1 = stablehlo.reverse %a, dims = [0] : {VECTOR}
        return %0, %1 : {VECTOR}, {VECTOR}""",
        arguments=f"%a: {VECTOR} {{tf.aliasing_output = 0 : i32}}",
        results=f"{VECTOR}, {VECTOR}",
    )
    assert found.temporary_bytes == KIB


def test_reshapes_broadcasts_and_constants_take_nothing() -> None:
    found = use(
        f"""%c = stablehlo.constant dense<1.0> : tensor<f32>
        %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
        %1 = stablehlo.reshape %0 : (tensor<16x16xf32>) -> {VECTOR}
        %2 = stablehlo.iota dim = 0 : {VECTOR}
        %3 = stablehlo.add %1, %2 : {VECTOR}
        return %3 : {VECTOR}""",
        arguments="",
        results=VECTOR,
    )
    assert found.peak_bytes == KIB


LOOP = """
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %end = stablehlo.constant dense<9> : tensor<i32>
    %start = stablehlo.reverse %a, dims = [0] : tensor<256xf32>
    %r:2 = stablehlo.while(%i = %zero, %x = %start) : tensor<i32>, tensor<256xf32>
    cond {
      %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %n = stablehlo.add %i, %one : tensor<i32>
      BODY
      stablehlo.return %n, %y : tensor<i32>, tensor<256xf32>
    }
    %out = stablehlo.reverse %r#1, dims = [0] : tensor<256xf32>
    return %out : tensor<256xf32>
"""


@pytest.mark.parametrize(
    ("body", "temporaries"),
    [
        ("%y = stablehlo.negate %x : tensor<256xf32>", 1),
        # The reversed vector may not be made over the one that it is made of.
        (
            """%b = stablehlo.reverse %x, dims = [0] : tensor<256xf32>
            %y = stablehlo.add %b, %x : tensor<256xf32>""",
            2,
        ),
        # %z may use the place of %x: that is read no more, and %y not yet made.
        (
            """%b = stablehlo.reverse %x, dims = [0] : tensor<256xf32>
            %z = stablehlo.reverse %b, dims = [0] : tensor<256xf32>
            %y = stablehlo.reverse %z, dims = [0] : tensor<256xf32>""",
            2,
        ),
        # %y must be there while %x is still read.
        (
            """%y = stablehlo.reverse %x, dims = [0] : tensor<256xf32>
            %d = stablehlo.dot %x, %a : (tensor<256xf32>, tensor<256xf32>) -> tensor<f32>""",
            2,
        ),
    ],
)
def test_a_loop_carries_one_buffer_from_round_to_round(body: str, temporaries: int) -> None:
    found = use(LOOP.replace("BODY", body), arguments=f"%a: {VECTOR}", results=VECTOR)
    # The counter and the scalars beside the vectors are a few bytes.
    assert found.temporary_bytes // KIB == temporaries
    assert found.temporary_bytes % KIB < 16


def test_a_branch_takes_what_its_largest_alternative_takes() -> None:
    branch = """%b = "stablehlo.if"(%p) ({
      %0 = stablehlo.reverse %a, dims = [0] : tensor<256xf32>
      %1 = stablehlo.reverse %0, dims = [0] : tensor<256xf32>
      %2 = stablehlo.add %0, %1 : tensor<256xf32>
      stablehlo.return %2 : tensor<256xf32>
    }, {
      stablehlo.return %a : tensor<256xf32>
    }) : (tensor<i1>) -> tensor<256xf32>
    return %b : tensor<256xf32>"""
    found = use(branch, arguments=f"%p: tensor<i1>, %a: {VECTOR}", results=VECTOR)
    # The sum is made over %0, where the result of the branch belongs.
    assert found.temporary_bytes == KIB
    assert found.peak_location.endswith("stablehlo.reverse")


BRANCH = """HloModule step, is_scheduled=true, num_partitions=1
%first (v: (f32[256])) -> (f32[256]) {
  %v = (f32[256]) parameter(0)
  %e = f32[256] get-tuple-element(%v), index=0
  %n = f32[256] negate(%e)
  ROOT %t = (f32[256]) tuple(RETURNED)
}
%second (w: (f32[256])) -> (f32[256]) {
  %w = (f32[256]) parameter(0)
  %e = f32[256] get-tuple-element(%w), index=0
  ROOT %t = (f32[256]) tuple(%e)
}
ENTRY %main (i: s32[], a: f32[256]) -> f32[256] {
  %i = s32[] parameter(0)
  %a = f32[256] parameter(1)
  %copied = f32[256] copy(%a)
  %t = (f32[256]) tuple(GIVEN)
  %c = (f32[256]) conditional(%i, %t, %t), branch_computations={%first, %second}
  %r = f32[256] get-tuple-element(%c), index=0
  ROOT %made = f32[256] copy(%r)
}"""


@pytest.mark.parametrize(("returned", "given"), [("%n", "%copied"), ("%e", "%a")])
def test_what_an_alternative_returns_as_it_came_in_is_there_once(returned: str, given: str) -> None:
    text = BRANCH.replace("RETURNED", returned).replace("GIVEN", given)
    found = memory_use(load_source(text.encode(), name="here"))
    assert found.output_bytes == KIB
    # The result of the branch, or the negation in it; what comes in is one of the two.
    assert found.temporary_bytes == KIB


def test_called_functions_are_walked() -> None:
    text = f"""
    func.func @main(%a: {VECTOR}) -> {VECTOR} {{
      %0 = call @twice(%a) : ({VECTOR}) -> {VECTOR}
      return %0 : {VECTOR}
    }}
    func.func private @twice(%a: {VECTOR}) -> {VECTOR} {{
      %0 = stablehlo.reverse %a, dims = [0] : {VECTOR}
      %1 = stablehlo.reverse %0, dims = [0] : {VECTOR}
      return %1 : {VECTOR}
    }}"""
    assert memory_use(load_source(text.encode(), name="here")).temporary_bytes == KIB


def test_tokens_take_nothing_and_shift_nothing() -> None:
    found = use(
        """%t = stablehlo.create_token : !stablehlo.token
        %p = stablehlo.constant dense<false> : tensor<i1>
        %0 = stablehlo.reverse %a, dims = [0] : tensor<256xf32>
        %r:2 = stablehlo.while(%u = %t, %x = %0) : !stablehlo.token, tensor<256xf32>
        cond {
          stablehlo.return %p : tensor<i1>
        } do {
          %v = stablehlo.after_all %u : !stablehlo.token
          %y = stablehlo.negate %x : tensor<256xf32>
          stablehlo.return %v, %y : !stablehlo.token, tensor<256xf32>
        }
        return %r#1 : tensor<256xf32>""",
        arguments=f"%a: {VECTOR}",
        results=VECTOR,
    )
    # The loop carries the output.
    assert found.temporary_bytes == 0
