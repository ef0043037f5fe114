from __future__ import annotations

import pytest

from hespas.collectives.msccl_xml import parse_program
from hespas.collectives.verify import verify
from hespas.errors import AlgorithmError


def step(kind: str, source: str, target: str, *, after: str = "-1:-1", count: int = 1) -> str:
    depid, deps = after.split(":")
    return (
        f'<step type="{kind}" srcbuf="{source[0]}" srcoff="{source[1:]}" dstbuf="{target[0]}" '
        f'dstoff="{target[1:]}" cnt="{count}" depid="{depid}" deps="{deps}"/>'
    )


def block(number: int, peers: str, *steps: str, channel: int = 0) -> str:
    send, receive = peers.split(",")
    content = "".join(steps)
    return f'<tb id="{number}" send="{send}" recv="{receive}" chan="{channel}">{content}</tb>'


def algorithm(
    *ranks: str, coll: str = "allreduce", chunks: int = 1, in_place: int = 1, more: str = ""
) -> str:
    gpus = "".join([
        f'<gpu id="{number}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="2">{rank}</gpu>'
        for number, rank in enumerate(ranks)
    ])  # fmt: skip
    return (
        f'<algo name="a" coll="{coll}" nchunksperloop="{chunks}" ngpus="{len(ranks)}" '
        f'inplace="{in_place}" {more}>{gpus}</algo>'
    )


def swap(*, reduce: str = "re", source: str = "s0") -> str:
    """Return what one of two ranks does: swap buffers through scratch memory, and add."""
    return block(
        0, "{peer},{peer}", step("s", "i0", "i0"), step("r", "i0", "s0"), step(reduce, source, "i0")
    )


def both(text: str) -> tuple[str, str]:
    return text.replace("{peer}", "1"), text.replace("{peer}", "0")


def problem(text: str) -> str:
    with pytest.raises(AlgorithmError) as caught:
        verify(parse_program(text))
    return str(caught.value)


def test_two_ranks_that_swap_and_add_reduce() -> None:
    found = verify(parse_program(algorithm(*both(swap()))))

    assert found.chunks_by_link() == {(0, 1): 1, (1, 0): 1}


def test_a_chunk_that_is_not_added_is_missing() -> None:
    text = problem(algorithm(*both(swap(reduce="cpy", source="i0"))))

    assert "rank 0's output chunk 0 lacks the contribution of rank 1" in text
    assert "(written last by rank 0, threadblock 0, step 2)" in text


def test_a_contribution_that_is_added_twice_is_named_with_its_step() -> None:
    twice = swap().replace("</tb>", step("re", "s0", "i0") + "</tb>")

    text = problem(algorithm(*both(twice)))

    assert "rank 0, threadblock 0, step 3: adds the contribution of rank 1 a second time" in text


def test_a_wrong_chunk_is_named() -> None:
    text = swap().replace("</tb>", "") + step("s", "i0", "i0") + step("r", "i0", "i1") + "</tb>"

    found = problem(algorithm(*both(text), chunks=2))

    assert "rank 0's output chunk 1 holds input chunk 0 instead of 1" in found


def test_adding_unlike_chunks_is_named() -> None:
    text = swap().replace('srcbuf="i" srcoff="0"', 'srcbuf="i" srcoff="1"', 1)

    found = problem(algorithm(*both(text), chunks=2))

    assert "rank 0, threadblock 0, step 2: adds chunk 0 to chunk 1" in found


def test_a_chunk_that_nobody_wrote_is_named() -> None:
    text = block(0, "{peer},{peer}", step("s", "i0", "i0"), step("r", "i0", "o1"))

    found = problem(algorithm(*both(text), coll="allgather", chunks=2, in_place=0))

    assert "rank 0's output chunk 0 holds nothing (never written)" in found


def test_what_is_read_before_it_is_there_is_named() -> None:
    text = problem(algorithm(*both(swap(source="s1"))))

    assert "rank 0, threadblock 0, step 2: reads scratch chunk 1, where nothing is yet" in text


def test_two_writes_in_no_order_race() -> None:
    local = block(1, "-1,-1", step("cpy", "o0", "s0"))

    text = problem(algorithm(*both(swap() + local), in_place=0))

    assert "threadblock 1, step 0: writes scratch chunk 0, which rank" in text
    assert "threadblock 0, step 1 writes, and nothing says which comes first" in text


def test_an_order_through_another_rank_is_an_order() -> None:
    # Rank 0 overwrites its input in threadblock 1 only when rank 1 has answered what it sent.
    first = block(0, "1,-1", step("s", "i0", "i0")) + block(1, "-1,1", step("r", "i0", "i0"))
    second = block(0, "-1,0", step("rrc", "i0", "i0")) + block(
        1, "0,-1", step("s", "i0", "i0", after="0:0")
    )

    assert verify(parse_program(algorithm(first, second))).is_result_known


def test_the_same_without_waiting_for_the_answer_races() -> None:
    first = block(0, "1,-1", step("s", "i0", "i0")) + block(1, "-1,1", step("r", "i0", "i0"))
    second = block(0, "-1,0", step("rrc", "i0", "i0")) + block(1, "0,-1", step("s", "i0", "i0"))

    text = problem(algorithm(first, second))

    assert "which rank 1, threadblock" in text


def test_steps_that_wait_for_each_other_are_named() -> None:
    text = block(0, "{peer},{peer}", step("r", "i0", "s0"), step("s", "i0", "i0"))

    found = problem(algorithm(*both(text)))

    assert "rank 0, threadblock 0, step 0 waits for a message of rank 1 on channel 0" in found
    assert "rank 1, threadblock 0, step 0 waits for a message of rank 0 on channel 0" in found
    assert "so none of them continues" in found


def test_threadblocks_that_wait_for_each_other_are_named() -> None:
    one = block(0, "-1,-1", step("cpy", "i0", "s0", after="1:0"))
    other = block(1, "-1,-1", step("cpy", "i0", "s1", after="0:0"))

    found = problem(algorithm(one + other, ""))

    assert "rank 0, threadblock 0, step 0 waits for threadblock 1, step 0" in found
    assert "rank 0, threadblock 1, step 0 waits for threadblock 0, step 0" in found


def test_a_message_that_is_not_sent_is_named() -> None:
    receiver = block(0, "-1,0", step("r", "i0", "s0"), step("r", "i0", "s1"))
    sender = block(0, "1,-1", step("s", "i0", "i0"))

    found = problem(algorithm(sender, receiver))

    assert "waits for a message of rank 0 on channel 0, where only 1 are sent" in found


def test_a_message_on_another_channel_is_not_that_message() -> None:
    receiver = block(0, "-1,0", step("r", "i0", "s0"), channel=1)
    sender = block(0, "1,-1", step("s", "i0", "i0"))

    assert "on channel 1, where nothing is sent" in problem(algorithm(sender, receiver))


def test_a_message_that_nobody_receives_is_named() -> None:
    text = problem(algorithm(block(0, "1,-1", step("s", "i0", "i0")), ""))

    assert "rank 0, threadblock 0, step 0: sends a message that rank 1 never receives" in text


def test_ends_of_different_sizes_are_named() -> None:
    receiver = block(0, "-1,0", step("r", "i0", "s0"))
    sender = block(0, "1,-1", step("s", "i0", "i0", count=2))

    found = problem(algorithm(sender, receiver, chunks=2))

    assert "rank 1, threadblock 0, step 0: receives 1 chunks" in found
    assert "rank 0, threadblock 0, step 0 sends 2 chunks" in found


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((block(0, "2,-1", step("s", "i0", "i0")), ""), "the peer 2 is not another one of 2"),
        ((block(0, "0,-1", step("s", "i0", "i0")), ""), "the peer 0 is not another one"),
        ((block(0, "-1,1", step("s", "i0", "i0")), ""), "has no peer to send to"),
        ((block(0, "1,-1", step("r", "i0", "i0")), ""), "has no peer to receive from"),
        ((block(0, "1,-1", step("s", "i1", "i0")), ""), "chunks 1 to 1 of the input buffer"),
        ((block(0, "-1,1", step("r", "i0", "s2")), ""), "of the scratch buffer, which has 2"),
        ((block(0, "1,-1") * 2, ""), "has the same"),
        ((block(0, "1,-1") + block(1, "1,-1"), ""), "threadblock 0 has the same"),
        (
            (block(0, "-1,-1", step("cpy", "i0", "s0", after="7:0")), ""),
            "waits for threadblock 7, step 0, which is not there",
        ),
    ],
)
def test_what_cannot_be_run_is_named(ranks: tuple[str, str], message: str) -> None:
    assert message in problem(algorithm(*ranks))


def test_a_broadcast_comes_from_its_root() -> None:
    root = block(0, "0,-1", step("s", "i0", "o0"))
    other = block(0, "-1,1", step("r", "i0", "o0"))

    text = algorithm(other, root, coll="broadcast", more='root="1"')
    assert verify(parse_program(text)).is_result_known
    assert "holds input chunk" not in problem(text.replace('root="1"', ""))


def test_a_reduce_matters_only_at_its_root() -> None:
    root = block(0, "-1,1", step("rrc", "i0", "o0"))
    other = block(0, "0,-1", step("s", "i0", "i0"))

    assert verify(parse_program(algorithm(root, other, coll="reduce"))).is_result_known


def test_of_a_custom_collective_only_the_run_is_checked() -> None:
    text = algorithm(
        block(0, "1,-1", step("s", "i0", "i0")), block(0, "-1,0", step("r", "i0", "o0"))
    )

    found = verify(parse_program(text.replace("allreduce", "custom")))

    assert not found.is_result_known
    assert found.chunks_by_link() == {(0, 1): 1}


@pytest.mark.parametrize("kind", ["rcs", "rrs", "rrcs"])
def test_fused_steps_do_what_their_parts_do(kind: str) -> None:
    # 0 -> 1 -> 2 -> 0: what rank 1 sends on tells what its fused step did.
    text = algorithm(
        block(0, "1,2", step("s", "i0", "i0"), step("r", "i0", "o0")),
        block(0, "2,0", step(kind, "i0", "o0")),
        block(0, "0,1", step("rrcs", "i0", "o0")),
        in_place=0,
    )
    has_sum_at_0 = {"rcs": "rank 0's output chunk 0 lacks the contribution of rank 1"}
    has_stored = {"rrs": "rank 1's output chunk 0 holds nothing"}

    expected = has_sum_at_0 | has_stored
    assert expected.get(
        kind, "rank 1's output chunk 0 lacks the contribution of rank 2"
    ) in problem(text)
