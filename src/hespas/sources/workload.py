"""Read a workload's program: a file, or an export."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, assert_never

import msgspec

from hespas.base.cache import ContentCache, code_digest, made_once
from hespas.base.process import (
    Limits,
    is_staying,
    scratch_directory,
)
from hespas.base.progress import Stage, stage
from hespas.base.question import PROGRAM_FILE, ask
from hespas.base.version import __version__, installed_version
from hespas.errors import ExtraMissingError, ProgramError, ToolError
from hespas.frontend.load import read_source
from hespas.models.model import MeshAxes, Part, PartProgram
from hespas.sources.exported import (
    Answer,
    Exported,
    Request,
    Workload,
)
from hespas.sources.maxtext import MaxTextStep, export_maxtext, step_key
from hespas.sources.source import DumpSource, FileSource, FunctionSource, ModelSource, Source
from hespas.sources.torch_step import TorchStep, recorded_step
from hespas.xla.cpu import use_cpu
from hespas.xla.hlo.forms import is_hlo
from hespas.xla.mlir.module import is_jax_export
from hespas.xla.partition.partition import ENVIRONMENT

_LIMITS = Limits(time_s=1800)
_MARK = b"hespas exported 1\n"
_MAKERS = ("models", "sources")
"""The folders whose code decides what a model is exported as."""


def export_cache(directory: Path) -> ContentCache:
    """Return the cache of exported models in a directory."""
    return ContentCache(
        directory=directory, suffix=".exported", mark=_MARK, content_name="exported programs"
    )


def read_workload(source: Source, *, cache: ContentCache | None) -> Workload:
    """Return the program of a workload.

    Models that differ in ``data`` and ``fsdp`` of their meshes alone are exported once, and so are
    parts of equal micro-batches. Functions are exported each time: their names say nothing of what
    they do. Raises `ProgramError` for a file that can't be read and for a function that fails,
    `ConfigError` for settings of a model that do not fit, and `ToolError` if the exporting process
    fails.
    """
    match source:
        case FileSource():
            content = read_source(source.path)
            if is_hlo(content) or not is_jax_export(content):
                return Workload(name=source.name, content=content)
            return _artifact(content, source.name)
        case DumpSource() | FunctionSource():
            return export_source(source)
        case ModelSource():
            return _model_workload(source, cache)
        case MaxTextStep():
            return made_once(cache, step_key(source), Exported, partial(export_source, source))
        case TorchStep():
            with stage(Stage.EXPORT, source.name, kind="torch", size=1):
                return Workload(name=source.name, content=recorded_step(source, cache))
        case _:
            assert_never(source)


def _model_workload(source: ModelSource, cache: ContentCache | None) -> Workload:
    from hespas.sources.zoo import same_but_for_sizes, with_both_axes  # noqa: PLC0415 - models alone

    exported_source = with_both_axes(source)
    reduced_source = same_but_for_sizes(exported_source)

    export = partial(export_source, exported_source)
    workload = made_once(cache, model_key(reduced_source), Exported, export)
    is_sized = source.part is None or source.part.program is PartProgram.UPDATE
    if is_sized and reduced_source is not source:
        text = on_mesh(workload.content, source.mesh, name=source.name)
        workload = replace(workload, content=text, devices=source.mesh.device_count)
    return replace(workload, notes=(*source.notes, *workload.notes))


def export_source(source: Source) -> Exported:
    """Export the program of a workload in another process.

    The program of a PyTorch step is a recorded step (`hespas.program.recorded`), of one device. An
    interrupt ends that process: JAX's own code, which an interrupt may crash, never meets one.
    Raises as `read_workload` does, and `ProgramError` for a file that jax.export did not write.
    """
    match source:
        case FileSource():
            content = read_source(source.path)
            if not is_jax_export(content):
                raise ProgramError(
                    "this file is not what jax.export serialises",
                    location=source.name,
                    hint="give a program that is sharded to `hespas partition`",
                )
            return _artifact(content, source.name)
        case DumpSource():
            from hespas.sources.dump import export_dump  # noqa: PLC0415 - few have one

            return export_dump(source.path, module=source.module)
        case FunctionSource():
            return _export_apart(
                Request(
                    name=source.name,
                    devices=source.devices,
                    directory=str(Path.cwd()),
                    path=[str(Path.cwd()), *sys.path],
                    platform=source.platform,
                )
            )
        case ModelSource():
            return _model(source)
        case MaxTextStep():
            with stage(Stage.EXPORT, source.name, kind="maxtext", size=1):
                return export_maxtext(source)
        case TorchStep():
            workload = read_workload(source, cache=None)
            return Exported(
                content=workload.content,
                name=source.name,
                devices=source.devices,
                is_partitioned=True,
            )
        case _:
            assert_never(source)


def _artifact(content: bytes, name: str) -> Exported:
    return _export_apart(Request(name=name, artifact=True), artifact=content)


def _model(source: ModelSource) -> Exported:
    settings = dict(source.texts)
    if is_staying():
        with stage(Stage.EXPORT, source.name, kind=source.name, size=1):
            return _export_here(source.name, settings, source.part)
    return _export_apart(Request(name=source.name, model=True, settings=settings, part=source.part))


def _export_here(name: str, settings: dict[str, str], part: Part | None) -> Exported:
    use_cpu()
    # JAX takes long to import.
    functions: Any = import_module("hespas.sources.function")
    try:
        return functions.export_model(name, settings, part=part)
    except ExtraMissingError as error:
        raise ToolError(error.message, location=error.location, hint=error.hint) from error


def model_key(source: ModelSource) -> str:
    """Return the key of an exported model."""
    settings = repr(source.model.settings)
    changed = sorted(source.texts.items())
    versions = (__version__, installed_version("jax"), installed_version("jaxlib"))
    part = "" if source.part is None else repr(source.part)
    parts = (source.name, settings, changed, part, versions, code_digest(*_MAKERS))
    return sha256(msgspec.msgpack.encode(parts)).hexdigest()


def _export_apart(request: Request, artifact: bytes = b"") -> Exported:
    with (
        stage(Stage.EXPORT, request.name, kind=request.name, size=1),
        scratch_directory("export") as home,
    ):
        if artifact:
            (home / PROGRAM_FILE).write_bytes(artifact)
        answer = ask(
            "hespas.sources.worker",
            request,
            Answer,
            name="the export",
            directory=home,
            limits=_LIMITS,
            environment=ENVIRONMENT if request.model else None,
            again=request.model,
        )
        return Exported(
            content=(home / PROGRAM_FILE).read_bytes(),
            name=request.name,
            devices=answer.devices,
            notes=tuple(answer.notes),
        )


_MESH = re.compile(rb"^ *sdy\.mesh @mesh = .*$", re.MULTILINE)
_PARTITIONS = re.compile(rb"mhlo\.num_partitions = \d+")
_DECLARED = re.compile(rb'"(\w+)"=\d+')
_NAMES = re.compile(rb'\{("\w+"(?:, "\w+")*)\}')
"""Axes that divide a dimension, or that a computation is manual over."""


def on_mesh(text: bytes, mesh: MeshAxes, *, name: str) -> bytes:
    """Return a program with other sizes of mesh axes.

    Axes that ``mesh`` lacks divide nothing. Raises `ProgramError` for a program that does not
    declare one mesh with the axes of ``mesh``.

    >>> text = b'sdy.mesh @mesh = <["a"=2, "b"=1]> {axes = [{name = "a", size = 2 : i64}]}'
    >>> on_mesh(text, MeshAxes(axes=(("a", 8),)), name="").decode()
    'sdy.mesh @mesh = <["a"=8]> {axes = [{name = "a", size = 8 : i64}]}'
    """
    declared = _MESH.findall(text)
    if len(declared) != 1:
        raise ProgramError(f"it declares {len(declared)} meshes, and not one", location=name)
    changed: bytes = declared[0]
    for axis, size in mesh.axes:
        sizes = re.compile(rb'("%b"=|name = "%b", size = )\d+' % ((axis.encode(),) * 2))
        changed, count = sizes.subn(rb"\g<1>%d" % size, changed)
        if not count:
            raise ProgramError(f"its mesh has no axis {axis}", location=name)
    counted = b"mhlo.num_partitions = %d" % mesh.device_count
    text = _PARTITIONS.sub(counted, text, count=1)
    absent = set(_DECLARED.findall(changed)) - {axis.encode() for axis in mesh.names}
    for axis in absent:
        changed = _without_item(rb'"%b"=\d+' % axis, changed)
        changed = _without_item(rb'\{name = "%b", size = \d+ : i64\}' % axis, changed)
    text = text.replace(declared[0], changed)
    if not absent:
        return text

    def present(names: re.Match[bytes]) -> bytes:
        used = [item for item in names[1].split(b", ") if item.strip(b'"') not in absent]
        return b"{%b}" % b", ".join(used)

    return _NAMES.sub(present, text)


def _without_item(item: bytes, text: bytes) -> bytes:
    """Drop what matches from lists."""
    return re.sub(rb"%b, |, %b|%b" % ((item,) * 3), b"", text)
