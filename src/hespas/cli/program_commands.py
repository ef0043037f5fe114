"""``hespas export``, ``partition`` and ``compile``: make and change programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec

from hespas.base.cache import ContentCache
from hespas.base.fields import Group, declare, refuse_unused
from hespas.base.files import check_file, write_file
from hespas.base.frozen import frozen
from hespas.base.home import cache_home
from hespas.base.process import Limits
from hespas.base.units import format_bytes_binary
from hespas.cli import flags
from hespas.cli.answers import Answer, answering, check_targets
from hespas.compile.cache import CompiledCache
from hespas.compile.compiler import DEFAULT_LIMITS, compile_program
from hespas.compile.job import CompiledProgram, Layout
from hespas.compile.options import CompileOptions, parse_size
from hespas.compile.targets import TpuTarget, find_target
from hespas.errors import ConfigError, OutputError, UnsupportedError, option
from hespas.frontend.load import load_source, read_source
from hespas.frontend.mesh import (
    global_facts_of_source,
    with_device_order,
    with_mesh,
    with_step,
)
from hespas.hardware.sized import find_system
from hespas.hardware.system import System
from hespas.prediction.workload import with_work
from hespas.program.kernels import encode_kernels
from hespas.program.program import instructions_digest
from hespas.sources.exported import partitioned
from hespas.sources.maxtext import DEFAULT_CONFIG, MaxTextStep, check_slices
from hespas.sources.options import MAXTEXT, MODEL, TORCH, MaxTextOptions, ModelOptions, TorchOptions
from hespas.sources.source import (
    DumpSource,
    FileSource,
    FunctionSource,
    ModelSource,
    Source,
    find_source,
)
from hespas.sources.torch_step import PREFIX, TorchStep
from hespas.sources.workload import export_cache, export_source, read_workload
from hespas.xla.hlo.forms import is_hlo
from hespas.xla.hlo.module import stablehlo_of_hlo
from hespas.xla.partition.partition import partition as divided

_MAXTEXT = "maxtext"


@answering("export", example="hespas export llama3-1b --mesh fsdp=8 -o step.mlir", has_json=False)
@flags.exported_argument
@click.argument("settings", nargs=-1, metavar="[[CONFIG.yml] KEY=VALUE ...]")
@flags.plain(
    "--list",
    "list_models",
    is_flag=True,
    help="List the models and their options, or SOURCE alone.",
)
@flags.both("output", "-o", type=flags.FILE, metavar="FILE", help="The file to write.")
@flags.derived(ModelOptions)
@flags.plain(
    "--devices", type=click.IntRange(1), metavar="N", help="Virtual devices for one's own function."
)
@flags.plain("--module", metavar="NAME", help="Part of a module's name, for a dump of several.")
@flags.derived(MaxTextOptions)
@flags.derived(TorchOptions)
@flags.plain("--unpartitioned", is_flag=True, help="Keep the annotations, and do not partition.")
def export(
    *,
    source: str | None,
    settings: tuple[str, ...],
    output: Path | None,
    list_models: bool,
    unpartitioned: bool,
    devices: int | None,
    module: str | None,
    **values: Any,
) -> Answer:
    """Write SOURCE as the StableHLO of one device, or of all with --unpartitioned.

    SOURCE is a model of the zoo (--list), package.module:function, a file that jax.export
    serialised, or a directory that XLA dumped into. Or it is maxtext, with MaxText's own
    configuration and settings: for --target and --devices, or for --cluster. A step of PyTorch,
    torch:FILE.py:function, is written as it is recorded for such a cluster.
    """
    if list_models:
        return Answer(text=lambda: _models_text(source))
    if source is None:
        raise ConfigError("no source is given", hint="name a model; --list lists them")
    target = _checked_output(output)
    resolved = _resolve_source(source, settings, {**values, "devices": devices})
    resolved = _with_kind_options(resolved, devices=devices, module=module)
    exported = export_source(resolved)
    text = exported.content
    if isinstance(resolved, TorchStep):
        if unpartitioned:
            raise ConfigError("--unpartitioned has no effect on a step of PyTorch", hint="drop it")
    elif not isinstance(resolved, MaxTextStep):
        marked = _with_whole(text, text, source, of=resolved)
        exported = replace(exported, content=marked)
        exported = exported if unpartitioned else partitioned(exported)
        text = _with_whole(exported.content, marked, source, of=resolved)
    write_file(target, text)
    source_notes = resolved.notes if isinstance(resolved, ModelSource) else ()
    notes = [f"  {note}" for note in (*source_notes, *exported.notes)]
    return Answer(
        text=lambda: "\n".join([f"{target}: {source} for {exported.devices} devices", *notes])
    )


def _checked_output(output: Path | None) -> Path:
    """Return the file to write; refuse a missing one."""
    if output is None:
        raise OutputError("no output is given", hint="name a file with -o")
    check_file(output)
    return output


def _with_whole(program: bytes, source: bytes, name: str, of: Source) -> bytes:
    """Add the mesh, the device order and the step's inputs of a source."""
    facts = with_work(global_facts_of_source(source, name=name), of)
    marked = with_mesh(with_step(program, facts), facts.mesh)
    return with_device_order(marked, facts.device_order)


def _resolve_source(source: str, settings: tuple[str, ...], values: dict[str, Any]) -> Source:
    maxtext = flags.built(MaxTextOptions, values)
    model = flags.built(ModelOptions, values)
    torch = flags.built(TorchOptions, values)
    if source.startswith(PREFIX):
        other_options = replace(maxtext, cluster=None, target=None)
        refuse_unused(other_options, {MAXTEXT: "a step of PyTorch"})
        subject = "a step of PyTorch"
        target, devices, _ = _target_machine(maxtext, values["devices"], subject=subject)
        return find_source(source, model, torch, devices=devices, target=target)
    refuse_unused(torch, {TORCH: source})
    if source == _MAXTEXT:
        return _maxtext(settings, maxtext, model, devices=values["devices"])
    if settings:
        raise ConfigError(
            f"{' '.join(settings[:2])} stands behind {source}",
            hint=f"drop it; settings of MaxText stand behind {_MAXTEXT}",
        )
    refuse_unused(maxtext, {MAXTEXT: source})
    return find_source(source, model)


def _with_kind_options(source: Source, *, devices: int | None, module: str | None) -> Source:
    """Return a source with its kind's options; refuse others."""
    if devices is not None and not isinstance(source, FunctionSource | MaxTextStep | TorchStep):
        raise ConfigError(
            "--devices is for a function, package.module:function, MaxText and PyTorch",
            hint="drop it",
        )
    if module is not None and not isinstance(source, DumpSource):
        raise ConfigError("--module is for a directory that XLA dumped into", hint="drop it")
    match source:
        case FunctionSource():
            return replace(source, devices=devices)
        case DumpSource():
            return replace(source, module=module)
        case _:
            return source


def _maxtext(
    settings: tuple[str, ...],
    options: MaxTextOptions,
    model: ModelOptions,
    *,
    devices: int | None,
) -> MaxTextStep:
    remedy = "write MaxText's own settings, as in ici_fsdp_parallelism=8"
    refuse_unused(model, {MODEL: "a step of MaxText"}, remedy=remedy)
    config, *setting_texts = (
        settings if settings and "=" not in settings[0] else (DEFAULT_CONFIG, *settings)
    )
    target, count, system = _target_machine(options, devices, subject="a step of MaxText")
    step = MaxTextStep(
        config=config,
        settings=tuple(setting_texts),
        target=find_target(target),
        devices=count,
        topology=options.topology,
        python=options.python,
    )
    if system is not None:
        check_slices(step, system)
    return step


def _target_machine(
    options: MaxTextOptions, devices: int | None, *, subject: str
) -> tuple[str, int, System | None]:
    """Return a step's part, device count and system."""
    system = None if options.cluster is None else find_system(options.cluster)
    if system is not None:
        if system.part is None or devices not in (None, system.device_count):
            raise ConfigError(
                f"{option('cluster')} {options.cluster} has {system.device_count} devices",
                hint=f"give {option('target')} and {option('devices')}, or the cluster alone",
            )
        return system.part, system.device_count, system
    if options.target is None or devices is None:
        raise ConfigError(
            f"{subject} is made for a cluster",
            hint=f"give {option('cluster')}, as in 32xH100_80GB, or {option('target')} and "
            f"{option('devices')}",
        )
    return options.target, devices, None


def _models_text(name: str | None) -> str:
    """Describe one model with its options, or the whole zoo."""
    catalogue = import_module("hespas.models.catalogue")
    shown = catalogue.models().values() if name is None else (catalogue.model_named(name),)
    lines: list[str] = []
    for model in shown:
        settings = (f"{name}={value}" for name, value in model.options().items())
        lines += [f"{model.name}: {model.summary}", f"  {' '.join(settings)}"]
    return "\n".join(lines)


@answering("partition", example="hespas partition sharded.mlir -o step.mlir", has_json=False)
@click.argument("program", type=flags.FILE)
@flags.both("output", "-o", type=flags.FILE, metavar="FILE", help="The file to write.")
def partition(program: Path, output: Path | None) -> Answer:
    """Write PROGRAM, which shardings annotate, as one device runs it, with its collectives.

    PROGRAM is StableHLO annotated by Shardy or GSPMD, or HLO from before partitioning.
    """
    target = _checked_output(output)
    source = read_source(program)
    if is_hlo(source):
        source = stablehlo_of_hlo(source, name=str(program))
    result = divided(source, name=str(program))
    whole = _with_whole(result.text, source, str(program), of=FileSource(path=program))
    write_file(target, whole)
    return Answer(
        text=lambda: (
            f"{target}: the program of one of {result.devices} devices, by {result.partitioner}"
        )
    )


@frozen
class _Request:
    """The compiler's options, limits, devices and cache."""

    devices: int | None = declare(help="How many devices, if not said.", aliases=("num_npus",))
    devices_per_host: int | None = declare(
        help="GPUs of a host.", default_text="8; 4 for GB200 and GB300"
    )
    topology: str | None = declare(
        help="Chips of a TPU slice, as in 4x4.", default_text="by the devices"
    )
    options: CompileOptions = field(default_factory=CompileOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    time_limit_s: float = declare(
        help="How long it may take.",
        name="time_limit",
        unit="s",
        group=Group.CACHES,
        default_text="3600s",
        default=DEFAULT_LIMITS.time_s,
    )
    memory_limit_bytes: int | None = declare(
        help="How much it may address.",
        name="memory_limit",
        parse=partial(parse_size, name="memory_limit"),
        metavar="SIZE",
        group=Group.CACHES,
        default_text="32GiB",
        default=DEFAULT_LIMITS.memory_bytes,
    )
    disable_cache: bool = declare(
        help="Compile, and keep nothing.", one_of="cache", group=Group.CACHES, default=False
    )
    cache_dir: Path | None = declare(
        help="Where compiled programs are cached.",
        default_text="~/.cache",
        metavar="DIR",
        one_of="cache",
        group=Group.CACHES,
    )

    @property
    def cache(self) -> CompiledCache | None:
        """The cache of compiled programs, unless disabled."""
        if self.disable_cache:
            return None
        return CompiledCache(directory=self.cache_dir or cache_home() / "compiled")

    @property
    def exported(self) -> ContentCache | None:
        """The cache of exported models, unless disabled."""
        if self.disable_cache:
            return None
        return export_cache(self.cache_dir or cache_home() / "exported")


@answering(
    "compile", example="hespas compile step.mlir --target H100_SXM -o step.hlo", checks_target=True
)
@click.argument("program", type=flags.FILE)
@flags.plain("--target", required=True, metavar="TARGET", help="What to compile for.")
@flags.both(
    "output", "-o", type=flags.FILE, metavar="FILE", help="HLO text; a proto if it ends in .pb."
)
@flags.plain("--kernels", type=flags.FILE, metavar="FILE", help="The kernels of a GPU, as JSON.")
@flags.derived(_Request)
def compile_(
    *,
    program: Path,
    target: str,
    output: Path | None,
    kernels: Path | None,
    json_file: str | None,
    **values: Any,
) -> Answer:
    """Compile PROGRAM for a target that isn't there.

    PROGRAM is StableHLO before or after partitioning, a model (hespas export --list), or one's own
    package.module:function.

    TARGET is a GPU or TPU (H100_SXM, TPUv5e), the node preset of one, or a file with XLA's
    description of a GPU. Needs hespas[gpu] or hespas[tpu].
    """
    request = flags.built(_Request, values)
    source = find_source(
        str(program), request.model, devices=request.devices, target=target, loops=True
    )
    check_targets(json_file, output=output, kernels=kernels)
    if kernels is not None and isinstance(find_target(target), TpuTarget):
        raise ConfigError("the kernels of a TPU are not readable", hint="drop --kernels")
    workload = read_workload(source, cache=request.exported)
    compiled = compile_program(
        workload.content,
        name=workload.name,
        target=target,
        layout=Layout(
            devices=request.devices, per_host=request.devices_per_host, topology=request.topology
        ),
        options=request.options,
        limits=Limits(time_s=request.time_limit_s, memory_bytes=request.memory_limit_bytes),
        cache=request.cache,
    )
    if kernels is not None:
        _write_kernels(compiled, kernels)
    if output is not None:
        is_proto = output.suffix == ".pb"
        content = compiled.hlo_proto if is_proto else compiled.hlo_text.encode()
        whole = _with_whole(content, workload.content, workload.name, of=source)
        write_file(output, whole)
    return Answer(text=lambda: compiled_text(compiled), json=lambda: compiled_json(compiled))


def _write_kernels(compiled: CompiledProgram, file: Path) -> None:
    if compiled.kernels is None:
        raise UnsupportedError("; ".join(compiled.notes), location=compiled.name)
    program = load_source(compiled.hlo_proto, name=compiled.name)
    kernels = msgspec.structs.replace(compiled.kernels, program=instructions_digest(program))
    write_file(file, encode_kernels(kernels))


def compiled_json(compiled: CompiledProgram) -> Mapping[str, object]:
    """Return the details of a compiled program as JSON values."""
    memory = compiled.memory
    kernels = compiled.kernels
    return {
        "target": compiled.target,
        "topology": compiled.topology,
        "replicas": compiled.replicas,
        "partitions": compiled.partitions,
        "kernel_launches": None if kernels is None else len(kernels.launches),
        "distinct_kernels": None if kernels is None else len(kernels.ptx),
        "memory": {
            "argument_bytes": memory.argument_bytes,
            "output_bytes": memory.output_bytes,
            "alias_bytes": memory.alias_bytes,
            "temporary_bytes": memory.temporary_bytes,
            "generated_code_bytes": memory.generated_code_bytes,
            "total_bytes": memory.total_bytes,
            "host_bytes": memory.host_bytes,
        },
        "flags": dict(compiled.flags),
        "versions": dict(compiled.versions),
        "notes": list(compiled.notes),
    }


def compiled_text(compiled: CompiledProgram) -> str:
    """Return a summary of a compiled program as text."""
    memory = compiled.memory
    size_of_label = {
        "arguments": memory.argument_bytes,
        "outputs": memory.output_bytes,
        "of these in place": memory.alias_bytes,
        "temporary": memory.temporary_bytes,
        "code": memory.generated_code_bytes,
        "together": memory.total_bytes,
    }
    sizes = ", ".join(
        f"{label} {format_bytes_binary(size)}" for label, size in size_of_label.items()
    )
    host = f"; of its host: {format_bytes_binary(memory.host_bytes)}" if memory.host_bytes else ""
    compilers = " and ".join(f"{name} {number}" for name, number in compiled.versions.items())
    devices = f"{compiled.replicas} replicas x {compiled.partitions} partitions"
    lines = [
        f"Compiled for {compiled.target} ({compiled.topology}): {devices}",
        f"Compilers: {compilers}",
        f"Memory of a device: {sizes}{host}",
    ]
    if compiled.kernels is not None:
        count, distinct = len(compiled.kernels.launches), len(compiled.kernels.ptx)
        lines.append(f"Kernels: {count} launches of {distinct}")
    return "\n".join([*lines, *(f"Note: {note}" for note in compiled.notes)])
