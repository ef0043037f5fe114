"""Processes that answer, die, take too long, are cancelled, and are asked by many at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import pytest

from hespas.app.pool import BUSY, CANCELLED, Limits, Pool

_ANSWERING = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    time.sleep(asked.get("takes_s", 0))
    print(json.dumps({"echo": asked["about"], "process": os.getpid()}), flush=True)
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(limits=Limits(processes=2, time_s=3.0), command=(sys.executable, "-c", _ANSWERING))
    yield made
    made.close()


def test_a_killed_process_is_a_message_and_the_next_question_works(pool: Pool) -> None:
    process = int(pool.ask({"about": 1}, "")["process"])
    Thread(target=lambda: (sleep(0.3), os.kill(process, signal.SIGKILL)), daemon=True).start()
    assert "SIGKILL" in pool.ask({"about": 2, "takes_s": 2}, "")["error"]
    assert pool.ask({"about": 3}, "")["echo"] == 3


def test_a_question_that_takes_too_long_is_a_message(pool: Pool) -> None:
    assert "took longer than 3 s" in pool.ask({"about": 1, "takes_s": 30}, "")["error"]
    assert pool.ask({"about": 2}, "")["echo"] == 2


def test_who_asks_can_cancel(pool: Pool) -> None:
    Thread(target=lambda: (sleep(0.3), pool.cancel("mine")), daemon=True).start()
    start_s = monotonic()
    assert pool.ask({"about": 1, "takes_s": 30}, "mine") == {"error": CANCELLED}
    assert monotonic() - start_s < 2
    assert not pool.cancel("mine")
    assert pool.ask({"about": 2}, "mine")["echo"] == 2


def test_a_question_that_waits_for_a_process_can_be_cancelled(pool: Pool) -> None:
    with ThreadPoolExecutor(3) as tabs:
        for number in range(2):
            tabs.submit(pool.ask, {"about": number, "takes_s": 2}, "")
        sleep(0.3)
        start_s = monotonic()
        waiting = tabs.submit(pool.ask, {"about": 3}, "mine")
        sleep(0.3)
        assert pool.cancel("mine")
        assert waiting.result() == {"error": CANCELLED}
        assert monotonic() - start_s < 1.5
    assert pool.ask({"about": 4}, "mine")["echo"] == 4


def test_what_is_asked_after_a_cancelled_question_is_answered(pool: Pool) -> None:
    with ThreadPoolExecutor(3) as tabs:
        asked = [tabs.submit(pool.ask, {"about": 1, "takes_s": 2}, "mine") for _ in range(2)]
        sleep(0.3)
        assert pool.cancel("mine")
        later = tabs.submit(pool.ask, {"about": 2}, "mine")
        assert [question.result() for question in asked] == 2 * [{"error": CANCELLED}]
        assert later.result()["echo"] == 2


def test_ten_at_once_get_their_own_answers(pool: Pool) -> None:
    def asked(number: int) -> int:
        return int(pool.ask({"about": number, "takes_s": 0.01}, str(number))["echo"])

    with ThreadPoolExecutor(10) as tabs:
        assert list(tabs.map(asked, range(60))) == list(range(60))


def test_questions_about_one_topic_go_to_the_process_that_knows_it(pool: Pool) -> None:
    first = pool.ask({"about": 1}, "", topic="8B")["process"]
    other = pool.ask({"about": 2}, "", topic="70B")["process"]
    assert first != other
    for number in range(3):
        assert pool.ask({"about": number}, "", topic="8B")["process"] == first
        pool.ask({"about": number}, "")
        assert pool.ask({"about": number}, "", topic="70B")["process"] == other


def test_a_topic_whose_process_is_busy_does_not_wait(pool: Pool) -> None:
    known = pool.ask({"about": 1}, "", topic="8B")["process"]
    asked = Thread(target=pool.ask, args=({"about": 2, "takes_s": 2}, ""), kwargs={"topic": "8B"})
    asked.start()
    sleep(0.3)
    assert pool.ask({"about": 3}, "", topic="8B")["process"] != known
    asked.join()


def test_what_can_wait_leaves_one_process_free(pool: Pool) -> None:
    asked = Thread(target=pool.ask, args=({"about": 1, "takes_s": 2}, ""))
    asked.start()
    sleep(0.3)
    assert pool.ask({"about": 2}, "", can_wait=True) == {"error": BUSY}
    asked.join()
    assert pool.ask({"about": 2}, "", can_wait=True)["echo"] == 2
