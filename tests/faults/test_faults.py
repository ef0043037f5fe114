"""A short part of the faults, the same every time: ``make faults`` tries all of them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from random import Random

import pytest

from faults.backends import bad_backend
from faults.jobs import JOBS
from faults.trials import (
    Machine,
    Shim,
    full_at_each_write,
    homes,
    machine_of,
    no_permission,
    signalled,
    two_at_once,
)


@pytest.fixture(scope="module")
def machine() -> Machine:
    (job,) = (each for each in JOBS if each.name == "trace")
    return machine_of(job, sys.executable)


@pytest.mark.skipif(not Shim.is_possible(), reason="needs a C compiler")
def test_a_full_disk(machine: Machine, tmp_path: Path) -> None:
    trials = list(full_at_each_write(machine, Shim(tmp_path), most=2, rng=Random(1)))
    assert [trial.why for trial in trials] == ["", ""]
    assert not any(trial.answered for trial in trials)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal(machine: Machine, number: signal.Signals) -> None:
    assert not signalled(machine, number, Random(int(number))).why


def test_permissions_and_homes(machine: Machine) -> None:
    trials = [no_permission(machine), *homes(machine)]
    assert [trial.why for trial in trials] == [""] * 4
    assert not trials[0].answered


def test_two_at_once(machine: Machine) -> None:
    assert not two_at_once(machine, Random(1)).why


@pytest.mark.parametrize(
    ("backend", "what"),
    [
        ("sst", "hangs with a child"),
        ("astra-sim", "prints garbage"),
        ("htsim", "prints a time in which nothing can be done"),
    ],
)
def test_another_program_that_misbehaves(backend: str, what: str) -> None:
    assert not bad_backend(backend, what).why
