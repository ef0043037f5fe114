from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from hespas.program.groups import FoldedGroups, GroupMode, ListedGroups, device_groups
from hespas.program.program import Program
from hespas.program.rewrite import with_calls_opened
from hespas.program.text import structure_key
from hespas.program.types import ELEMENT_TYPES, size_bytes, tensor_type
from hespas.xla.mlir.text import read_type, split_list
from programs import VECTOR, Straight, on_devices, read, straight_programs, text_of


def printed(program: Program) -> str:
    return text_of({"main": program.main})


@given(straight_programs())
def test_what_is_printed_reads_back_as_itself(drawn: Straight) -> None:
    text = printed(read(drawn.text))
    assert printed(read(on_devices(text.replace("private", "public")))) == text


@given(straight_programs())
def test_names_make_no_difference(drawn: Straight) -> None:
    one, two = read(drawn.text), read(drawn.text.replace("%v", "%other_"))
    assert printed(one) == printed(two)
    keys = [
        structure_key(program.main.body.operations[:-1], program.main.body.arguments[:0])
        for program in (one, two)
    ]
    assert keys[0] == keys[1]


@given(straight_programs(), st.data())
def test_opening_a_call_undoes_moving_lines_to_a_function(
    drawn: Straight, data: st.DataObject
) -> None:
    count = len(drawn.steps)
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first, count - 1))
    moved = "".join(drawn.line(at) for at in range(first, last + 1))
    inputs, outputs = range(first + 1), range(first + 1, last + 2)
    types = [", ".join([VECTOR] * len(values)) for values in (inputs, outputs)]
    arguments = ", ".join(f"%v{number}: {VECTOR}" for number in inputs)
    made = ", ".join(f"%v{number}" for number in outputs)
    helper = (
        f"func.func private @moved({arguments}) -> ({types[1]}) {{\n"
        f"{moved}return {made} : {types[1]}\n}}\n"
    )
    given_values = ", ".join(f"%v{number}" for number in inputs)
    call = f"{made} = call @moved({given_values}) : ({types[0]}) -> ({types[1]})\n"
    before = "".join(drawn.line(at) for at in range(first))
    after = "".join(drawn.line(at) for at in range(last + 1, count))
    program = read(on_devices(helper + drawn.main(before + call + after)))
    opened = text_of({"main": with_calls_opened(program)})
    assert opened == printed(read(drawn.text))


@st.composite
def foldings(draw: st.DrawFn) -> FoldedGroups:
    dimensions = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    permutation = draw(st.permutations(range(len(dimensions))))
    grouped = draw(st.integers(0, len(dimensions)))
    size = prod(dimensions[axis] for axis in permutation[len(dimensions) - grouped :])
    return FoldedGroups(
        dimensions=tuple(dimensions), permutation=tuple(permutation), group_size=size
    )


@given(foldings())
def test_a_folding_divides_the_devices(folding: FoldedGroups) -> None:
    groups = folding.listed()
    assert {len(group) for group in groups} == {folding.group_size}
    everyone = sorted(device for group in groups for device in group)
    assert everyone == [*range(prod(folding.dimensions))]


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(GroupMode), st.data())
def test_groups_of_everybody_divide_the_devices(
    replicas: int, partitions: int, mode: GroupMode, data: st.DataObject
) -> None:
    named = {
        GroupMode.CROSS_REPLICA: replicas,
        GroupMode.CROSS_REPLICA_AND_PARTITION: replicas,
        GroupMode.CROSS_PARTITION: partitions,
        GroupMode.FLATTENED_IDS: replicas * partitions,
    }[mode]
    order = data.draw(st.permutations(range(named)))
    cut = data.draw(st.integers(0, named))
    rows = tuple(tuple(row) for row in (order[:cut], order[cut:]) if row)
    found = device_groups(ListedGroups(groups=rows), mode, replicas=replicas, partitions=partitions)
    everyone = sorted(device for group in found for device in group)
    assert everyone == [*range(replicas * partitions)]


@given(st.sampled_from(sorted(ELEMENT_TYPES)), st.lists(st.integers(0, 9), max_size=4))
def test_types_read_back_as_themselves(element: str, shape: list[int]) -> None:
    kind = tensor_type(element, *shape)
    assert read_type(str(kind)) == kind
    bits = ELEMENT_TYPES[element].bits * prod(shape)
    assert bits <= 8 * size_bytes(kind) < bits + 8


@given(st.lists(st.sampled_from(("a", "(b, c)", "<d, [e]>", '"f, g"', "{h = 1, i}", "(j) -> k"))))
def test_lists_split_where_they_were_joined(parts: list[str]) -> None:
    assert split_list(", ".join(parts)) == parts
