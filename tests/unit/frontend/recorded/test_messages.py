"""Messages of one rank that stand for those of all."""

from __future__ import annotations

import pytest

from hespas import predict
from hespas.errors import UnsupportedError
from hespas.frontend.load import load_per_device
from hespas.prediction.result import Prediction
from hespas.program.attrs import PermuteAttrs
from hespas.program.program import Program
from hespas.program.recorded import RecordedStep, encode_recorded
from recorded_steps import COMMUNICATION, Recorder


def loaded(step: RecordedStep) -> Program:
    """Return the program of a step."""
    return load_per_device(encode_recorded(step), name="step.json").program


def predicted(step: RecordedStep) -> Prediction:
    """Predict a step on eight GPUs."""
    return predict(loaded(step), cluster="8xH100_80GB", model="hespas")


def ring(*order: str, group: tuple[int, ...] | None = None, rows: int = 4096) -> RecordedStep:
    """Return a step in which ranks send to the next one and receive from the one before."""
    recorder = Recorder()
    members = tuple(range(8)) if group is None else group
    sent, received = recorder.tensor(rows, 4096), recorder.tensor(rows, 4096)
    for kind in order:
        is_send = kind == "send"
        recorder.message(
            kind,
            sent if is_send else received,
            members[1] if is_send else members[-1],
            group=members,
        )
    return recorder.step()


def pairs_of(program: Program) -> list[tuple[tuple[int, int], ...]]:
    """Return the pairs of each permutation."""
    operations = program.functions["main"].body.operations
    return [op.attrs.pairs for op in operations if isinstance(op.attrs, PermuteAttrs)]


@pytest.mark.parametrize("order", [("send", "receive"), ("receive", "send")])
def test_a_send_and_a_receive_around_a_ring_are_one_permutation(order: tuple[str, str]) -> None:
    assert pairs_of(loaded(ring(*order))) == [tuple((rank, (rank + 1) % 8) for rank in range(8))]


def test_each_group_has_a_ring() -> None:
    [pairs] = pairs_of(loaded(ring("send", "receive", group=(0, 2, 4, 6))))
    assert set(pairs) == {(rank, (rank + 2) % 8) for rank in range(8)}


def test_a_ring_takes_as_long_as_its_bytes_on_a_link_at_least() -> None:
    short = predicted(ring("send", "receive"))
    long = predicted(ring("send", "receive", rows=8 * 4096))
    further_s = long.communication_s - short.communication_s
    assert further_s >= 7 * 2 * 4096**2 / 450e9


@pytest.mark.parametrize("order", [("send",), ("receive",), ("send", "send", "receive")])
def test_messages_without_a_partner_are_those_of_stages(order: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedError, match="another stage"):
        loaded(ring(*order))


def test_messages_with_a_product_between_them_are_those_of_stages() -> None:
    # The first of two stages: it sends forward, computes, and receives backward.
    recorder = Recorder(world_size=2)
    tensor = recorder.tensor(64, 64)
    recorder.message("send", tensor, 1)
    recorder.product(tensor, tensor)
    recorder.message("receive", tensor, 1)
    with pytest.raises(UnsupportedError, match="another stage"):
        loaded(recorder.step())


def test_messages_of_two_sizes_do_not_fit() -> None:
    recorder = Recorder()
    recorder.message("send", recorder.tensor(64, 64), 1)
    recorder.message("receive", recorder.tensor(64, 32), 7)
    with pytest.raises(UnsupportedError, match="another stage"):
        loaded(recorder.step())


def test_permutations_stay_on_the_stream_of_their_messages() -> None:
    operations = loaded(ring("send", "receive")).functions["main"].body.operations
    [permute] = [op for op in operations if isinstance(op.attrs, PermuteAttrs)]
    assert permute.stream == COMMUNICATION
