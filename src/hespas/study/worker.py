"""A worker of a study: ``python -m hespas.study.worker``.

It reads tasks from standard input, a line of JSON each, and writes an outcome for each to standard
output. It ends with the process that started it, in the middle of a task too.
"""

from __future__ import annotations

import gc
import os
import sys
from queue import SimpleQueue
from threading import Thread

import msgspec

from hespas.base.staying import stay
from hespas.study.evaluate import evaluate
from hespas.study.messages import Task


def main() -> None:
    """Answer tasks until standard input ends."""
    # What a library prints must not stand among the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    tasks: SimpleQueue[bytes] = SimpleQueue()
    # What stays is kept out of collections, which are a tenth of the time, and those are fewer.
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)
    Thread(target=_read, args=(tasks,), daemon=True).start()
    while True:
        task = msgspec.json.decode(tasks.get(), type=Task)
        stay(stays=task.may_stay)
        answers.write(msgspec.json.encode(evaluate(task)) + b"\n")


def _read(tasks: SimpleQueue[bytes]) -> None:
    """Pass on lines; where there are no more, who asks is gone, and so is the need for answers."""
    for line in sys.stdin.buffer:
        tasks.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
