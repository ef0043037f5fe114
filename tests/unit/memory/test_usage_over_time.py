"""The memory in use while each operation runs."""

from __future__ import annotations

from hespas.memory.usage import memory_of_operations, memory_use
from hespas.stages import load
from scheduled import done, kernel, loop, scheduled, start, sync

V_BYTES = 1024


def test_a_program_in_no_order_has_none() -> None:
    assert memory_of_operations(load("examples/attention_block.mlir")) == {}


def test_what_is_live_changes_from_kernel_to_kernel() -> None:
    lines = [kernel("k0", "a"), kernel("k1", "k0"), kernel("k2", "k1"), kernel("k3", "k2")]
    found = memory_of_operations(scheduled(*lines))

    # The argument and the output throughout; k0 is in the output's memory, k1 and k2 are not.
    assert [found[f"k{at}"] // V_BYTES for at in range(4)] == [2, 3, 4, 3]


def test_the_largest_is_the_peak_without_gaps() -> None:
    inner, rounds = loop("r", "k0", kernel("x", "v"), sync("y", "x"), kernel("w", "y"))
    around = [kernel("k0", "a"), *rounds, start("s", "r"), kernel("k1", "r"), done("d", "s")]
    program = scheduled(*around, kernel("k2", "d"), functions=inner)

    found, use = memory_of_operations(program), memory_use(program)

    assert max(found.values()) == use.peak_bytes - use.gap_bytes
    assert {"x.1", "y.1", "w", "s", "k1"} <= found.keys()
    assert max(found["x.1"], found["y.1"], found["w"]) == found["out_r"]
