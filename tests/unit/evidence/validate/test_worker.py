"""What the process of a row may take."""

from __future__ import annotations

import resource

import pytest

from hespas.evidence.validate.worker import stacks_bytes


@pytest.mark.parametrize(
    ("stack", "expected"), [(2**23, 2 * 2048 * 2**23), (2**20, 2**32), (-1, 2 * 2048 * 2**23)]
)
def test_threads_of_many_devices_may_reserve_their_stacks(
    stack: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_STACK: (stack, -1)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert stacks_bytes(2048) == expected
