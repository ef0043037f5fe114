from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hespas.simulate.kernel import Collectives, Mailbox, Mailboxes


@given(st.lists(st.booleans()))
def test_the_kth_receive_takes_the_kth_message(is_message: list[bool]) -> None:
    mailbox: Mailbox[tuple[str, int]] = Mailbox("tag", 0, 1, 8)
    sent = received = 0
    pairs: list[tuple[int, int]] = []
    for is_next_message in is_message:
        if is_next_message:
            receiver = mailbox.deliver(("send", sent))
            if receiver is not None:
                pairs.append((sent, receiver[1]))
            sent += 1
        else:
            sender = mailbox.receive(("receive", received))
            if sender is not None:
                pairs.append((sender[1], received))
            received += 1

    matched = min(sent, received)
    assert sorted(pairs) == [(k, k) for k in range(matched)]
    left = ("send", sent) if sent > received else ("receive", received)
    assert list(mailbox.waiting()) == [(left[0], k) for k in range(matched, left[1])]


def test_messages_match_by_source_target_tag_and_size() -> None:
    mailboxes: Mailboxes[str] = Mailboxes()
    mailbox = mailboxes.mailbox(3, 0, 1, 8)

    assert mailboxes.mailbox(3, 0, 1, 8) is mailbox
    others = [(4, 0, 1, 8), (3, 2, 1, 8), (3, 0, 2, 8), (3, 0, 1, 9)]
    assert all(mailboxes.mailbox(*other) is not mailbox for other in others)


def test_forgotten_mailboxes_are_new_again() -> None:
    mailboxes: Mailboxes[str] = Mailboxes()
    mailbox = mailboxes.mailbox(3, 0, 1, 8)
    mailboxes.mailbox(4, 0, 1, 8).deliver("sender")

    mailboxes.forget(3)

    assert not mailboxes.of_tag(3)
    assert mailboxes.mailbox(3, 0, 1, 8) is not mailbox
    assert list(mailboxes.waiting()) == ["sender"]


def test_the_kth_collectives_of_a_group_belong_together() -> None:
    collectives: Collectives[str] = Collectives()

    first = collectives.join(0, 1, "a", signature="all_reduce", now_ps=5)
    second = collectives.join(0, 1, "b", signature="all_gather", now_ps=7)
    other_group = collectives.join(1, 1, "c", signature="all_reduce", now_ps=7)

    assert collectives.join(0, 2, "d", signature="all_reduce", now_ps=9) is first
    assert (first.first, first.start_ps, first.endpoints) == ("a", 5, {1: "a", 2: "d"})
    assert (first.number, second.number, other_group.number) == (0, 1, 0)
    collectives.complete(first)
    assert collectives.pending() == [second, other_group]
