"""Steps of a PyTorch program, recorded for absent GPUs.

``torch:FILE.py:function`` or ``torch:package.module:function`` names a function that returns its
step: a function without arguments. ``torch:FILE.py WORDS`` is a script with its training loop. A
process of its own records it (`hespas.torch.worker`), with fake devices and a fake process group
of the cluster's size.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import field, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import msgspec

from hespas.base.cache import ContentCache, code_digest
from hespas.base.frozen import frozen
from hespas.base.process import Limits, scratch_directory
from hespas.base.question import ask
from hespas.base.suggest import suggestion
from hespas.base.version import __version__, installed_version, installed_versions
from hespas.compile.targets import GpuTarget, Target
from hespas.errors import (
    ConfigError,
    DeviceCountError,
    ExtraMissingError,
    ProgramError,
    ToolError,
    option,
)
from hespas.program.recorded import decode_recorded, encode_recorded
from hespas.sources.imports import file_digest, program_digests
from hespas.sources.options import TorchOptions
from hespas.torch.messages import (
    PINNED,
    STEP_FILE,
    GpuDescription,
    StepAnswer,
    StepRequest,
    ended_file,
    leave,
    ranks_file,
)

PREFIX = "torch:"
_HUGGING_FACE = "hf:"
_HUGGING_FACE_MODULE = "hespas.torch.hugging_face"
EXTRA = "torch"
_LIMITS = Limits(time_s=1800)
_POLL_S = 0.05
_FORM = (
    f"write {PREFIX}FILE.py:FUNCTION, {PREFIX}PACKAGE.MODULE:FUNCTION, or {PREFIX}FILE.py for a "
    "script"
)
_SCRIPT = ".py"
_DECIDING = (
    *PINNED,
    *("accelerate", "deepspeed", "diffusers", "lightning", "megatron-core", "numpy", "peft"),
    *("pytorch-lightning", "timm", "torchao", "torchtitan", "transformers", "trl"),
)
"""Packages whose versions, if installed, decide what is recorded."""
_MAKERS = ("torch", "sources", "program")
"""The folders whose code decides what is recorded."""
_CAPABILITY = re.compile(r"cuda_compute_capability \{ major: (\d+)(?: minor: (\d+))?")


@frozen
class TorchStep:
    """A function that returns a step, with its target.

    Without a ``function`` the file ``module`` is a script, called with ``words``. ``label`` names
    it in messages, unless its function does.
    """

    module: str
    function: str
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    words: tuple[str, ...] = ()
    target: GpuTarget
    devices: int
    options: TorchOptions = field(default_factory=TorchOptions)
    label: str = ""

    @property
    def name(self) -> str:
        """The name in messages."""
        named = f"{self.module}:{self.function}" if self.function else self.module
        return self.label or f"{PREFIX}{named}"

    @property
    def given_files(self) -> list[str]:
        """The files that arguments name."""
        words = [part for word in self.words for part in (word, word.partition("=")[2])]
        return [text for text in (*self.arguments.values(), *words) if Path(text).is_file()]


class _CachedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded step, and what its program read: files' digests, variables' values."""

    step: bytes
    files: dict[str, str]
    variables: dict[str, str | None]


def torch_step(
    text: str,
    arguments: Mapping[str, str],
    options: TorchOptions,
    *,
    devices: int | None,
    target: Target | None,
) -> TorchStep:
    """Return the step that a text behind `PREFIX` names.

    A script gets ``arguments`` as words, as in ``--batch=8``. Raises `ConfigError` for a text that
    names neither function nor script, and unless an NVIDIA GPU is named; `ProgramError` for a
    script that is not there.
    """
    script, *words = _script(text)
    if script and not Path(script).is_file():
        raise ProgramError("no such file", location=script, hint="check the path")
    module, _, function = text.rpartition(":")
    if not script and not (module and function.isidentifier()):
        raise ConfigError(
            "a step of PyTorch needs a file and a function, or a script",
            location=PREFIX + text,
            hint=_FORM,
        )
    if devices is None or target is None:
        raise ConfigError(
            "a step of PyTorch is recorded for a cluster, and none is given",
            location=PREFIX + text,
            hint=f"give {option('cluster')}, as in 8xH100_80GB",
        )
    if not isinstance(target, GpuTarget) or _CAPABILITY.search(target.description) is None:
        raise ConfigError(
            f"steps of PyTorch are recorded for NVIDIA's GPUs, and {target.name} is none",
            location=PREFIX + text,
            hint=f"give another {option('cluster')}, as in 8xH100_80GB",
        )
    if devices < 1:
        raise DeviceCountError(f"{devices} devices are asked for", hint="give 1 or more")
    step = TorchStep(
        module=module,
        function=function,
        arguments=dict(arguments),
        target=target,
        devices=devices,
        options=options,
    )
    if not script:
        return step
    given = [f"--{name}={value}" for name, value in arguments.items()]
    return replace(step, module=script, function="", arguments={}, words=(*words, *given))


def _script(text: str) -> list[str]:
    """Return a script and its words; an empty name if the text names none."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"the words of the script end within quotes ({error})", location=PREFIX + text
        ) from error
    return words if words and words[0].endswith(_SCRIPT) else [""]


def is_hugging_face(text: str) -> bool:
    """Return whether a text names a model of ``transformers``."""
    return text.startswith(_HUGGING_FACE)


def hugging_face_step(
    text: str,
    arguments: Mapping[str, str],
    options: TorchOptions,
    *,
    step: str,
    devices: int | None,
    target: Target | None,
) -> TorchStep:
    """Return a step of a model of ``transformers``.

    ``text`` has behind ``hf:`` a configuration that hespas ships, by ``ORG/NAME``, or the user's: a
    ``config.json`` or a directory with it. Raises `ConfigError` if there is none.
    """
    name = text.removeprefix(_HUGGING_FACE)
    named_step = torch_step(
        f"{_HUGGING_FACE_MODULE}:{step}",
        {**arguments, "config": str(_configuration(name).resolve())},
        options,
        devices=devices,
        target=target,
    )
    return replace(named_step, label=f"{PREFIX}{text}:{step}")


def _configuration(name: str) -> Path:
    from hespas.models.configuration import FILE, SHIPPED  # noqa: PLC0415 - few steps need it

    given_path, shipped = Path(name), SHIPPED / f"{name}.json"
    for file in (given_path / FILE, given_path, shipped):
        if file.is_file():
            return file
    shipped_names = [
        str(file.relative_to(SHIPPED).with_suffix("")) for file in SHIPPED.glob("*/*.json")
    ]
    raise ConfigError(
        f"there is no configuration of {name!r}",
        location=f"{PREFIX}{_HUGGING_FACE}{name}",
        hint=f"{suggestion(name, shipped_names)}, or give a directory with its config.json",
    )


def record_torch(step: TorchStep) -> tuple[bytes, StepAnswer]:
    """Record a step; return it with the files and variables that it came from.

    The recording is as `hespas.program.recorded` writes it. Raises `ExtraMissingError` without
    torch and Triton, and errors of the user's program as `ProgramError`, with its own file and
    line.
    """
    check_packages()
    with scratch_directory("torch") as home:
        recorded = _recorded_stages(step, home)
        files = {file for _, answer in recorded for file in answer.files}
        variables = {name for _, answer in recorded for name in answer.variables}
        inputs = StepAnswer(files=sorted({*files, *step.given_files}), variables=sorted(variables))
        return _joined([content for content, _ in recorded]), inputs


_Recording = tuple[bytes, StepAnswer]


def _recorded_stages(step: TorchStep, home: Path) -> list[_Recording]:
    """Record rank 0, and the other ranks of its pipeline beside it."""
    messages = home / "stages"
    messages.mkdir()
    failures: list[BaseException] = []

    def record(rank: int) -> _Recording:
        directory = home / f"rank{rank}"
        directory.mkdir()
        try:
            answer = ask(
                "hespas.torch.worker",
                msgspec.structs.replace(_request(step), rank=rank, stages=str(messages)),
                StepAnswer,
                name="the recording of a step of PyTorch",
                directory=directory,
                limits=_LIMITS,
            )
            return (directory / STEP_FILE).read_bytes(), answer
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            leave(ended_file(messages, rank), b"")

    with ThreadPoolExecutor(max_workers=step.devices) as pool:
        first = pool.submit(record, 0)
        while not first.done() and not ranks_file(messages).exists():
            wait([first], timeout=_POLL_S)
        others: list[Future[_Recording]] = []
        if ranks_file(messages).exists():
            ranks = map(int, ranks_file(messages).read_text().split())
            others = [pool.submit(record, rank) for rank in ranks if rank != 0]
        wait([first, *others])
        if failures:
            # The first one is the cause: other stages waited for its messages.
            raise failures[0]
        return [future.result() for future in (first, *others)]


def _joined(contents: Sequence[bytes]) -> bytes:
    """Return the step of the first rank with those of others."""
    if len(contents) == 1:
        return contents[0]
    first, *others = map(decode_recorded, contents)
    return encode_recorded(msgspec.structs.replace(first, stages=tuple(others)))


def check_packages() -> None:
    """Raise `ExtraMissingError` without torch or Triton, `ToolError` for other versions."""
    for package, pinned in PINNED.items():
        if find_spec(package) is None:
            raise ExtraMissingError("a step of PyTorch", extra=EXTRA)
        version = installed_version(package)
        if version.split("+")[0] != pinned:
            raise ToolError(
                f"{package} {version} is installed, and steps are recorded with {pinned}, whose "
                "internals hespas knows",
                hint=f"pip install {package}=={pinned}",
            )


def recorded_step(step: TorchStep, cache: ContentCache | None) -> bytes:
    """Return a recorded step, cached while the files and variables that it read are unchanged."""
    if cache is None:
        return record_torch(step)[0]
    key = _step_key(step)
    cached = cache.value(key, _CachedStep)
    if cached is not None and cached == _with_inputs(cached.step, cached.files, cached.variables):
        return cached.step
    recorded, inputs = record_torch(step)
    cache.keep(key, _with_inputs(recorded, inputs.files, inputs.variables))
    return recorded


def _with_inputs(step: bytes, files: Iterable[str], variables: Iterable[str]) -> _CachedStep:
    return _CachedStep(
        step=step,
        files={file: file_digest(Path(file)) for file in files},
        variables={name: os.environ.get(name) for name in variables},
    )


def step_digest(step: TorchStep) -> str:
    """Return the digest of a step that is unrecorded: of the files that it is known to read."""
    given = {file: file_digest(Path(file)) for file in step.given_files}
    parts = (_step_key(step), sorted((program_digests(step.module) | given).items()))
    return sha256(msgspec.msgpack.encode(parts)).hexdigest()


def _step_key(step: TorchStep) -> str:
    """Return a step's key, from all inputs except files' contents."""
    versions = installed_versions(_DECIDING)
    request = msgspec.json.encode(_request(step))
    parts = (request, __version__, sys.version, versions, code_digest(*_MAKERS))
    return sha256(msgspec.msgpack.encode(parts)).hexdigest()


def _request(step: TorchStep) -> StepRequest:
    return StepRequest(
        name=step.name,
        module=step.module,
        function=step.function,
        arguments=dict(step.arguments),
        words=list(step.words),
        gpu=gpu_description(step.target),
        world_size=step.devices,
        devices_per_host=step.target.devices_per_host,
        is_eager=step.options.eager,
        torch_version=step.options.torch_version or "",
        directory=str(Path.cwd()),
        path=[str(Path.cwd()), *sys.path],
    )


def gpu_description(target: GpuTarget) -> GpuDescription:
    """Return a GPU from XLA's description of it.

    >>> from hespas.compile.targets import find_target
    >>> gpu = gpu_description(find_target("H100_80GB"))
    >>> gpu.architecture, gpu.multiprocessors, gpu.shared_memory_per_block_bytes
    ('sm_90a', 132, 232448)
    """
    text = target.description
    capability = _CAPABILITY.search(text)
    described_name = re.search(r'^  name: "([^"]*)"', text, re.MULTILINE)
    assert capability is not None  # noqa: S101 - `torch_step` has looked
    return GpuDescription(
        name=described_name[1] if described_name else target.name,
        major=int(capability[1]),
        minor=int(capability[2] or 0),
        multiprocessors=int(_figure(target, "core_count")),
        memory_bytes=int(_figure(target, "device_memory_size")),
        l2_cache_bytes=int(_figure(target, "l2_cache_size")),
        shared_memory_per_block_bytes=int(_figure(target, "shared_memory_per_block_optin")),
        shared_memory_per_multiprocessor_bytes=int(_figure(target, "shared_memory_per_core")),
        registers_per_multiprocessor=int(_figure(target, "registers_per_core_limit")),
        threads_per_multiprocessor=int(_figure(target, "threads_per_core_limit")),
        clock_hz=1e9 * _figure(target, "clock_rate_ghz"),
    )


def _figure(target: GpuTarget, name: str) -> float:
    value = re.search(rf"^  {name}: ([\d.]+)$", target.description, re.MULTILINE)
    if value is None:
        raise ConfigError(
            f"the description of {target.name} has no {name}", hint="give another cluster"
        )
    return float(value[1])
