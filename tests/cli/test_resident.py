"""The process of ``hespas app --background``: its answers are the command's, byte for byte."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="Linux says who asks"),
    pytest.mark.starts_jax,
]
ROOT = Path(__file__).resolve().parents[2]
SMALL = ("llama3-100m", "--set", "layers=2", "--set", "vocabulary=1024")
WHERE = ("--cluster", "4xA100_SXM_40GB", "--mesh", "fsdp=4")
STEP = ("run", *SMALL, *WHERE)
LONG = ("run", "llama3-100m", *WHERE, "--disable-cache")
_WAIT_S = 300


class Resident:
    """A resident process with a cache of its own, and commands that find it."""

    def __init__(self) -> None:
        # Paths of sockets are short.
        self.cache = Path(tempfile.mkdtemp(prefix="hespas-r-"))

    @property
    def place(self) -> Path:
        return self.cache / "hespas" / "resident"

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, "XDG_CACHE_HOME": str(self.cache), **more}

    def call(
        self, *words: str, where: Path, command: str = "hespas", **more: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-P", "-m", command, *words],
            cwd=where,
            env=self.environment(more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WAIT_S,
            check=False,
        )

    def begin(self, *words: str, where: Path, **more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "hespas", *words],
            cwd=where,
            env=self.environment(more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def start(self, *words: str) -> int:
        done = self.call("app", "--background", *words, where=self.cache)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split()[2])

    def stop(self) -> str:
        return self.call("app", "--stop", where=self.cache).stdout.decode()


@pytest.fixture(scope="module")
def resident() -> Iterator[Resident]:
    started = Resident()
    started.start()
    yield started
    assert "has ended" in started.stop()
    assert not (started.place / "socket").exists()
    shutil.rmtree(started.cache)


def workers(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in text.split()]


def both(
    resident: Resident, where: Path, *words: str
) -> tuple[subprocess.CompletedProcess[bytes], subprocess.CompletedProcess[bytes]]:
    """Return what a command does in the resident process, and in its own."""
    results: list[subprocess.CompletedProcess[bytes]] = []
    for name, switch in (("there", "only"), ("here", "off")):
        directory = where / name
        directory.mkdir()
        shutil.copy(ROOT / "examples" / "attention_block.mlir", directory / "step.mlir")
        results.append(resident.call(*words, where=directory, HESPAS_RESIDENT=switch))
    return results[0], results[1]


def files(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): _untimed(path) for path in found}


def _untimed(path: Path) -> bytes:
    """Return what a file holds, without how long the estimator took."""
    content = path.read_bytes()
    if path.name != "module_stats.json":
        return content
    return re.sub(rb'"(estimation|uncached)_time": [^,]+,', b"", content)


STEP_FILE = ("step.mlir", "--node", "A100_SXM_40GB", "--system", "A100_SXM_40GB_4GPU")


@pytest.mark.parametrize(
    "words",
    [
        STEP,
        ("run", *STEP_FILE, "--json", "--disable-cache"),
        (*STEP, "--json", "out.json", "--timeline", "out.pftrace"),
        ("run", *STEP_FILE),
        ("run", *STEP_FILE, "--as-exported", "--output", "made"),
        ("memory", *STEP_FILE),
        ("hardware",),
        ("run", "--help"),
        ("run", "llama3-100mm", *WHERE),
        ("run", *SMALL, "--cluster", "4xA100_SXM_40GB", "--mesh", "fsdp=3"),
        ("run", "--nonsense"),
        ("run", "none.mlir", *WHERE),
        ("run", *STEP[1:], "--json", "none/out.json"),
        ("run", ""),
        ("compare", "none.json", "other.json"),
        *(
            pytest.param(words, marks=pytest.mark.rest)
            for words in (
                ("explain", *STEP_FILE),
                ("kernels", *STEP_FILE),
                ("trace", *STEP_FILE, "--as-exported", "--output", "made"),
                ("models", "llama3"),
                ("schema",),
            )
        ),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_output_errors_exit_codes_and_files_are_the_same(
    resident: Resident, tmp_path: Path, words: tuple[str, ...]
) -> None:
    there, here = both(resident, tmp_path, *words)
    assert there.stdout == here.stdout
    assert there.stderr == here.stderr
    assert there.returncode == here.returncode
    assert files(tmp_path / "there").keys() == files(tmp_path / "here").keys()
    for name, content in files(tmp_path / "there").items():
        assert content == files(tmp_path / "here")[name], name


def test_a_slower_step_has_the_exit_code_of_the_command(resident: Resident, tmp_path: Path) -> None:
    for name, more in (("a.json", ()), ("b.json", ("--batch", "16"))):
        assert resident.call(*STEP, *more, "--json", name, where=tmp_path).returncode == 0
    words = ("compare", "a.json", "b.json", "--fail-above", "3%")
    codes = {
        resident.call(*words, where=tmp_path, HESPAS_RESIDENT=switch).returncode
        for switch in ("only", "off")
    }
    assert codes == {3}


def test_code_of_the_user_is_found_from_their_directory(resident: Resident, tmp_path: Path) -> None:
    text = (
        "import jax.numpy as jnp\n\n\ndef step():\n"
        "    return (lambda x: jnp.tanh(x @ x)), (jnp.ones((64, 64)),)\n"
    )
    (tmp_path / "my_step.py").write_text(text)
    words = ("run", "my_step:step", "--node", "A100_SXM_40GB", "--json")
    there, here = (
        resident.call(*words, where=tmp_path, HESPAS_RESIDENT=switch) for switch in ("only", "off")
    )
    assert (there.stdout, there.stderr, there.returncode) == (here.stdout, here.stderr, 0)


def test_a_terminal_sees_the_same(resident: Resident, tmp_path: Path) -> None:
    seen: list[bytes] = []
    for switch in ("only", "off"):
        outer, inner = pty.openpty()
        command = [sys.executable, "-P", "-m", "hespas", "run", "--nonsense"]
        environment = resident.environment({"HESPAS_RESIDENT": switch, "TERM": "xterm"})
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdin=inner, stdout=inner, stderr=inner,
            check=False, timeout=_WAIT_S,
        )  # fmt: skip
        assert done.returncode == 2
        os.close(inner)
        seen.append(os.read(outer, 65536))
        os.close(outer)
    assert seen[0] == seen[1]
    assert b"\x1b[" in seen[0]


def test_a_file_that_changed_is_read_anew(resident: Resident, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "attention_block.mlir", tmp_path / "step.mlir")
    node = json.loads((ROOT / "configs/nodes/A100_SXM_40GB/roofline/config.json").read_text())
    steps: list[bytes] = []
    for factor in (1, 2):
        changed = json.loads(json.dumps(node))
        changed["perf_estimator"]["hardware"]["memory_bandwidth"] *= factor
        (tmp_path / "mine.json").write_text(json.dumps(changed))
        words = ("run", "step.mlir", "--node", "mine.json", *STEP_FILE[3:], "--json")
        done = resident.call(*words, where=tmp_path, HESPAS_RESIDENT="only")
        assert done.returncode == 0, done.stderr
        steps.append(json.loads(done.stdout)["step_time_s"])
    assert steps[1] < steps[0]


def test_a_reader_that_ends_is_no_error(resident: Resident, tmp_path: Path) -> None:
    codes: list[tuple[int, bytes]] = []
    for switch in ("only", "off"):
        process = resident.begin("hardware", where=tmp_path, HESPAS_RESIDENT=switch)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        codes.append((process.wait(_WAIT_S), process.stderr.read()))
        process.stderr.close()
    assert codes[0] == codes[1]


def test_another_environment_is_answered_by_the_command_itself(
    resident: Resident, tmp_path: Path
) -> None:
    refused = resident.call(*STEP, where=tmp_path, HESPAS_RESIDENT="only", JAX_ENABLE_X64="1")
    assert refused.returncode == 2
    assert b"its environment is another one" in refused.stderr
    assert resident.call(*STEP, where=tmp_path, JAX_ENABLE_X64="1").returncode == 0


@pytest.mark.parametrize("option", ["--debug", "--log-level=info"])
def test_what_is_about_the_process_is_answered_here(
    resident: Resident, tmp_path: Path, option: str
) -> None:
    assert resident.call(*STEP, option, where=tmp_path, HESPAS_RESIDENT="only").returncode == 0


def test_a_command_that_is_asked_imports_nothing_heavy(resident: Resident, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom hespas.cli.main import main\nsys.argv = ['hespas', 'hardware']\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env=resident.environment({}), check=True, timeout=_WAIT_S,
    )  # fmt: skip
    assert {"click", "msgspec", "yaml", "jax", "logging"}.isdisjoint(done.stderr.split())


def busy_worker(process: int) -> int:
    """Return a worker once it has begun to work."""
    end_s = monotonic() + _WAIT_S
    (worker,) = workers(process)
    before = _ticks(worker)
    while _ticks(worker) < before + 20 and monotonic() < end_s:
        sleep(0.01)
    return worker


def _ticks(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11])


def test_a_worker_that_is_killed_leaves_the_command_to_the_one_who_asked(
    resident: Resident, tmp_path: Path
) -> None:
    process = resident.start()
    asked = resident.begin(*LONG, where=tmp_path)
    os.kill(busy_worker(process), signal.SIGKILL)
    said, complained = asked.communicate(timeout=_WAIT_S)
    assert asked.returncode == 0
    assert said == resident.call(*LONG, where=tmp_path, HESPAS_RESIDENT="off").stdout
    assert complained == b""
    # Another one took its place.
    assert resident.call(*STEP, where=tmp_path, HESPAS_RESIDENT="only").returncode == 0


def test_a_command_is_interrupted_as_its_own_process_is(resident: Resident, tmp_path: Path) -> None:
    process = resident.start()
    asked = resident.begin(*LONG, where=tmp_path, HESPAS_RESIDENT="only")
    busy_worker(process)
    asked.send_signal(signal.SIGINT)
    assert asked.communicate(timeout=_WAIT_S)[1] == (
        b"hespas: interrupted; nothing was left half-written\n"
    )
    assert asked.returncode == 130
    assert resident.call(*STEP, where=tmp_path, HESPAS_RESIDENT="only").returncode == 0


def test_who_is_gone_leaves_no_work_behind(resident: Resident, tmp_path: Path) -> None:
    process = resident.start()
    asked = resident.begin(*LONG, where=tmp_path, HESPAS_RESIDENT="only")
    worker = busy_worker(process)
    asked.kill()
    asked.communicate()
    end_s = monotonic() + _WAIT_S
    while worker in workers(process) and monotonic() < end_s:
        sleep(0.05)
    assert worker not in workers(process)


def test_a_second_command_does_not_wait(resident: Resident, tmp_path: Path) -> None:
    process = resident.start()
    first = resident.begin(*LONG, where=tmp_path)
    busy_worker(process)
    assert resident.call("hardware", where=tmp_path).returncode == 0
    refused = resident.call("hardware", where=tmp_path, HESPAS_RESIDENT="only")
    assert first.poll() is not None or b"busy" in refused.stderr
    first.kill()
    first.communicate()


def test_a_killed_process_is_noticed_and_started_again(tmp_path: Path) -> None:
    other = Resident()
    process = other.start()
    (worker,) = workers(process)
    assert (
        f"process {process} answers commands already"
        in other.call("app", "--background", where=tmp_path).stdout.decode()
    )
    os.kill(process, signal.SIGKILL)
    end_s = monotonic() + _WAIT_S
    while Path(f"/proc/{worker}/status").exists() and monotonic() < end_s:
        sleep(0.02)
    refused = other.call("hardware", where=tmp_path, HESPAS_RESIDENT="only")
    assert b"does not answer: Connection refused" in refused.stderr
    assert other.call("hardware", where=tmp_path).returncode == 0
    assert other.start("--workers", "2") != process
    assert other.call("hardware", where=tmp_path, HESPAS_RESIDENT="only").returncode == 0
    assert "has ended" in other.stop()
    assert "no resident process runs" in other.stop()
    shutil.rmtree(other.cache)


@pytest.mark.rest
def test_it_ends_when_nobody_asks_or_its_directory_goes(tmp_path: Path) -> None:
    for case in ("idle", "gone"):
        other = Resident()
        process = other.start("--idle", "1s" if case == "idle" else "1h")
        if case == "gone":
            (other.place / "socket").unlink()
        end_s = monotonic() + 30
        while _runs(process) and monotonic() < end_s:
            sleep(0.1)
        assert not _runs(process), case
        assert other.call("hardware", where=tmp_path).returncode == 0
        shutil.rmtree(other.cache)


def _runs(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--background", "--port", "9000"), b"--port has no effect without the page"),
        (("--idle", "3s"), b"--idle has no effect without a process in the background"),
        (("--stop", "--workers", "3"), b"--workers has no effect where a process is ended"),
        (("--stop", "--background"), b"--background"),
    ],
)
def test_options_without_an_effect_are_refused(
    tmp_path: Path, words: tuple[str, ...], said: bytes
) -> None:
    done = Resident().call("app", *words, where=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


# ---- who tries to get in


def test_only_the_user_reaches_the_socket(resident: Resident) -> None:
    for name, mode in ((".", 0o700), ("socket", 0o600), ("token", 0o600)):
        assert (resident.place / name).lstat().st_mode & 0o777 == mode, name


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("is_open", [False, True])
def test_another_user_is_refused(resident: Resident, is_open: bool) -> None:
    paths = (resident.cache, resident.cache / "hespas", resident.place, resident.place / "socket")
    modes = {path: path.lstat().st_mode & 0o777 for path in paths}
    for path in paths if is_open else ():
        path.chmod(0o777)
    code = (
        "import os, socket, sys\nos.setgid(65534); os.setuid(65534)\n"
        "peer = socket.socket(socket.AF_UNIX)\npeer.settimeout(20)\n"
        f"peer.connect({str(resident.place / 'socket')!r})\n"
        "body = sys.stdin.buffer.read()\n"
        "socket.send_fds(peer, [len(body).to_bytes(4, 'big')], [0, 1, 2, os.open('/', 0)])\n"
        "peer.sendall(body)\nprint(peer.recv(100))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], input=question(resident), capture_output=True,
        check=False, timeout=_WAIT_S,
    )  # fmt: skip
    for path, mode in modes.items():
        path.chmod(mode)
    if is_open:
        assert b"another user asks" in done.stdout
    else:
        assert b"PermissionError" in done.stderr


def question(resident: Resident, **changed: Any) -> bytes:
    token = (resident.place / "token").read_text()
    asked: dict[str, Any] = {
        "token": token, "arguments": ["hardware"], "environment": {}, "settings": {}, "umask": 0,
        "streams": [["utf-8", "strict"]] * 3,
    }  # fmt: skip
    return json.dumps({**asked, **changed}).encode()


def sent(resident: Resident, content: bytes, descriptors: int = 4) -> bytes:
    with socket.socket(socket.AF_UNIX) as peer, Path(os.devnull).open() as null:
        peer.settimeout(20)
        peer.connect(str(resident.place / "socket"))
        socket.send_fds(peer, [content[:4]], [null.fileno()] * descriptors)
        peer.sendall(content[4:])
        return peer.recv(200)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("token", ["", "x" * 43, "ü" * 43])
def test_another_token_is_refused(resident: Resident, token: str) -> None:
    assert sent(resident, framed(question(resident, token=token))) == b"nthe token is wrong"


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xff\xff\xff" + b" " * 100,
        framed(b"{nonsense"),
        framed(b"[]"),
        framed(b'{"token": 1}'),
        b"\0\0\0\0",
    ],
)
def test_nonsense_ends_nothing(resident: Resident, tmp_path: Path, content: bytes) -> None:
    with suppress(ConnectionResetError, BrokenPipeError):
        assert sent(resident, content) == b""
    assert resident.call("hardware", where=tmp_path, HESPAS_RESIDENT="only").returncode == 0


def test_a_directory_that_others_can_write_is_not_asked(tmp_path: Path) -> None:
    other = Resident()
    other.start()
    other.place.chmod(0o777)
    refused = other.call("hardware", where=tmp_path, HESPAS_RESIDENT="only")
    assert b"others can reach it" in refused.stderr
    assert other.call("hardware", where=tmp_path).returncode == 0
    other.place.chmod(0o700)
    other.stop()
    shutil.rmtree(other.cache)


def test_a_path_that_is_too_long_for_a_socket_is_an_error(tmp_path: Path) -> None:
    other = Resident()
    other.cache = tmp_path / ("x" * 100)
    done = other.call("app", "--background", where=tmp_path)
    assert done.returncode == 2
    assert b"XDG_CACHE_HOME" in done.stderr
