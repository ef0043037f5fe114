"""When buffers of loops are live, in one order of all operations."""

from __future__ import annotations

from hespas.memory.allocation import spans_of
from hespas.memory.usage import memory_use, settled
from scheduled import kernel, loop, scheduled

KIB = 1024
END = "%r = f32[64] slice(%l), slice={[0:64]}"


def test_what_a_loop_carries_leaves_its_memory_until_it_is_written_again() -> None:
    function, lines = loop("l", "k", kernel("t", "v"), kernel("u", "t"), kernel("w", "u"))
    state = settled(scheduled(kernel("k", "a"), *lines, END, functions=function))
    spans = spans_of(state.liveness, state.temporaries)
    live = sorted(span.live for span in spans if span.size_bytes == KIB)
    ((_, read), (written, _)), ((t, t_end),), ((u, u_end),) = live
    assert (t, t_end, u_end) == (read, u, written)
    assert read < u < written


def test_gaps_inside_of_loops_are_counted() -> None:
    # b lies behind a; when a is gone, c leaves 2 KiB of its memory, too little for d.
    body = (
        f"%a0 = f32[1536] concatenate({', '.join(['%v'] * 6)}), dimensions={{0}}",
        *(f"%x{at} = f32[1] slice(%a0), slice={{[0:1]}}" for at in range(8)),
        "%b = f32[1024] slice(%a0), slice={[0:1024]}",
        f"%c0 = f32[1024] concatenate({', '.join(['%v'] * 4)}), dimensions={{0}}",
        f"%d = f32[768] concatenate({', '.join(['%v'] * 3)}), dimensions={{0}}",
        *(f"%s{of} = f32[64] slice(%{of}), slice={{[0:64]}}" for of in ("b", "c0", "d")),
        "%w = f32[256] concatenate(%sb, %sc0, %sd, %sd), dimensions={0}",
    )
    function, lines = loop("l", "k", *body)
    use = memory_use(scheduled(kernel("k", "a"), *lines, END, functions=function))
    assert use.gap_bytes // KIB == 2
