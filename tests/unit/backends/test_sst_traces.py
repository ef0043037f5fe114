from __future__ import annotations

from struct import pack

import pytest

from hespas.backends.rank_programs import Exchange, Transfer, Wait
from hespas.backends.sst import trace_bytes, traces
from hespas.errors import HespasError

HOP = Exchange(
    sends=(Transfer(peer=1, size_bytes=4096, tag=0),),
    receives=(Transfer(peer=3, size_bytes=4096, tag=0),),
)


def test_a_trace_byte_by_byte() -> None:
    """Kind, start, arguments, end, result, little-endian."""
    tail = pack("<di", 1.5e-6, 0)
    expected = (
        pack("<Iddi", 1, 0.0, 0.0, 0)
        + pack("<Id", 17, 1.5e-6) + pack("<QIIiiIQ", 0, 4096, 4, 3, 0, 0, 1) + tail
        + pack("<Id", 4, 1.5e-6) + pack("<QIIiiI", 0, 4096, 4, 1, 0, 0) + tail
        + pack("<Id", 128, 1.5e-6) + pack("<QQ", 1, 0) + tail
        + pack("<Iddi", 2, 1.5e-6, 1.5e-6, 0)
    )  # fmt: skip
    assert trace_bytes((Wait(duration_ps=1_500_000), HOP)) == expected


def test_a_barrier_waits_for_the_computation_before_the_end() -> None:
    """Kind 64, with the communicator: FINI alone drops computation that follows all messages."""
    last = Wait(duration_ps=1_500_000)
    expected = (
        pack("<Iddi", 1, 0.0, 0.0, 0)
        + pack("<IdIdi", 64, 1.5e-6, 0, 1.5e-6, 0)
        + pack("<Iddi", 2, 1.5e-6, 1.5e-6, 0)
    )
    assert trace_bytes((last,), ends_with_barrier=True) == expected


def test_all_ranks_have_the_barrier_or_none() -> None:
    late = traces([(HOP, Wait(duration_ps=5)), (HOP,)])
    early = traces([(Wait(duration_ps=5), HOP), (HOP,)])
    barrier = pack("<I", 64)
    for rank in range(2):
        assert barrier in late[f"rank.{rank}"]
        assert barrier not in early[f"rank.{rank}"]


def test_a_message_of_4_gib_is_refused() -> None:
    large = Exchange(sends=(Transfer(peer=1, size_bytes=2**32, tag=0),), receives=())
    with pytest.raises(HespasError, match="count to 4294967295"):
        trace_bytes((large,))
