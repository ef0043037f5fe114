"""Warm processes that answer questions, one at a time each.

A process that dies, takes too long or is cancelled is an error of its question alone; the next
question starts another one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from threading import Condition, Lock, Thread
from typing import Any

from hespas.base.frozen import frozen
from hespas.base.process import Worker
from hespas.errors import HespasError

_COMMAND = (sys.executable, "-P", "-m", "hespas.app.worker")
MEMORY_VARIABLE = "HESPAS_APP_MEMORY_BYTES"
"""The environment's name of how much memory a worker may address; empty for no limit."""
CANCELLED = "cancelled"
BUSY = "busy"


@frozen
class Limits:
    """The number of processes, and a question's time and memory."""

    processes: int
    time_s: float
    memory_bytes: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Pending:
    """A question under way: who answers it, once it does not wait any more."""

    worker: Worker | None = None
    is_cancelled: bool = False


@dataclass(slots=True, kw_only=True)
class Pool:
    """Processes that answer questions; `close` ends them."""

    limits: Limits
    name: str = "the prediction"
    command: Sequence[str] = _COMMAND
    _idle: list[Worker] = field(default_factory=list[Worker])
    _freed: Condition = field(default_factory=Condition)
    _topics: dict[int, str] = field(default_factory=dict[int, str])
    _workers: list[Worker] = field(default_factory=list[Worker])
    _pending: dict[str, list[_Pending]] = field(default_factory=dict[str, list[_Pending]])
    _lock: Lock = field(default_factory=Lock)
    _home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="hespas-app-")))

    def __post_init__(self) -> None:
        memory = self.limits.memory_bytes
        environment = {MEMORY_VARIABLE: "" if memory is None else str(memory)}
        for number in range(self.limits.processes):
            worker = Worker(
                command=self.command,
                name=self.name,
                directory=self._home / str(number),
                environment=environment,
            )
            self._workers.append(worker)
            self._idle.append(worker)

    def warm(self, question: Mapping[str, object], *, then: Mapping[str, object]) -> None:
        """Start all processes with a question, and one with a further one.

        Answers are dropped. The other processes stay free for what is asked meanwhile.
        """
        for questions in ((question, then), *[(question,)] * (len(self._workers) - 1)):
            Thread(target=self._drop, args=(questions,), daemon=True).start()

    def _drop(self, questions: Sequence[Mapping[str, object]]) -> None:
        for question in questions:
            self.ask(question, "")

    def ask(
        self, question: Mapping[str, object], owner: str, *, topic: str = "", can_wait: bool = False
    ) -> dict[str, Any]:
        """Return a worker's answer, or its error in words.

        `cancel` of the ``owner`` ends the question.

        A question that ``can_wait`` leaves a process free for others, else it is not answered.
        Questions about one ``topic`` go to the process that knows it, where that is free.
        """
        pending = _Pending()
        with self._lock:
            self._pending.setdefault(owner, []).append(pending)
        try:
            return self._answer(question, pending, topic, can_wait=can_wait)
        finally:
            with self._lock:
                self._pending[owner].remove(pending)
                if not self._pending[owner]:
                    del self._pending[owner]

    def _answer(
        self, question: Mapping[str, object], pending: _Pending, topic: str, *, can_wait: bool
    ) -> dict[str, Any]:
        worker = self._take(topic, pending, least=min(2, self.limits.processes) if can_wait else 1)
        if worker is None:
            return {"error": CANCELLED if pending.is_cancelled else BUSY}
        try:
            with self._lock:
                pending.worker = worker
            if pending.is_cancelled:
                return {"error": CANCELLED}
            return worker.ask(question, time_s=self.limits.time_s)
        except HespasError as error:
            return {"error": CANCELLED if pending.is_cancelled else error.text(str)}
        finally:
            with self._lock:
                pending.worker = None
            with self._freed:
                self._idle.append(worker)
                self._freed.notify_all()

    def _take(self, topic: str, pending: _Pending, *, least: int) -> Worker | None:
        """Take a free process if ``least`` are free, unless the question is cancelled.

        One that knows the topic goes first, then one that knows none. A question without a topic
        takes the one that was used longest ago, so that what others know stays for them.
        """
        with self._freed:
            if least > 1 and len(self._idle) < least:
                return None
            while not self._idle:
                if pending.is_cancelled:
                    return None
                self._freed.wait()
            unused = [worker for worker in self._idle if id(worker) not in self._topics]
            if topic:
                fitting = [idle for idle in self._idle if self._topics.get(id(idle)) == topic]
                worker = fitting[-1] if fitting else (unused or self._idle)[0]
                self._topics[id(worker)] = topic
            else:
                worker = unused[-1] if unused else self._idle[0]
            self._idle.remove(worker)
            return worker

    def cancel(self, owner: str) -> bool:
        """End the questions of ``owner``, answered or waiting, if there are any."""
        with self._lock:
            questions = list(self._pending.get(owner, ()))
            for question in questions:
                question.is_cancelled = True
                if question.worker is not None:
                    question.worker.interrupt()
        with self._freed:
            self._freed.notify_all()
        return bool(questions)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.interrupt()
            worker.close()
        rmtree(self._home, ignore_errors=True)
