"""Traces are read message by message, one file at a time; equal tasks of devices are kept once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hespas.errors import TraceError
from hespas.tasks.chakra.reader import read_traces
from hespas.tasks.chakra.writer import write_traces
from hespas.tasks.graph import ComputeTask, ReceiveTask, SendTask, Task, TaskGraph

MEASURE = """
import resource, sys
from pathlib import Path
from hespas.tasks.chakra.reader import read_traces
job = read_traces(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(job.graphs))
"""


def ring(devices: int, *, computations: int) -> TaskGraph:
    """Return devices that compute for long, and send to the next: no two of their files agree."""
    tasks: list[Task] = [
        ComputeTask(
            id=number,
            name=f"computation {number:08}" * 8,
            depends_on=() if number == 1 else (number - 1,),
            duration_ps=1_000_000,
        )
        for number in range(1, computations + 1)
    ]
    pairs = tuple((device, (device + 1) % devices) for device in range(devices))
    last = computations
    tasks += [
        SendTask(id=last + 1, name="send", depends_on=(last,), pairs=pairs, size_bytes=8, tag=0),
        ReceiveTask(
            id=last + 2, name="receive", depends_on=(last,), pairs=pairs, size_bytes=8, tag=0
        ),
    ]
    return TaskGraph(name="ring", device_count=devices, tasks=tuple(tasks), group_tables=())


def peak_bytes(prefix: Path) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(prefix)], capture_output=True, text=True, check=True
    )
    peak_kib, graphs = map(int, done.stdout.split())
    return 1024 * peak_kib, graphs


def test_many_files_take_the_memory_of_one(tmp_path: Path) -> None:
    few, many = (tmp_path / name for name in ("few", "many"))
    for directory, devices in ((few, 2), (many, 24)):
        directory.mkdir()
        write_traces(ring(devices, computations=8000), directory)
    size_bytes = (many / "dev.0.et").stat().st_size
    (one, graphs), (all_of_them, same_graphs) = peak_bytes(few / "dev"), peak_bytes(many / "dev")
    assert graphs == same_graphs == 1
    assert size_bytes > 1_000_000
    # 22 files more, of which no two are equal.
    assert all_of_them - one < 3 * size_bytes


def test_a_length_beyond_the_file_is_refused(tmp_path: Path) -> None:
    write_traces(ring(2, computations=1), tmp_path)
    file = tmp_path / "dev.0.et"
    content = file.read_bytes()
    for damaged in (b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80" * 12, b"\x80", b"\x05ab"):
        file.write_bytes(content + damaged)
        with pytest.raises(TraceError, match=r"cut short|no message length|ends inside a length"):
            read_traces(tmp_path / "dev")
