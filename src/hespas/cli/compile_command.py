"""``hespas compile``: StableHLO to the optimised, scheduled HLO of a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from hespas.base.cache import ContentCache
from hespas.base.fields import Group, Option, declare
from hespas.base.files import cache_home, check_file, write_file
from hespas.base.process import Limits
from hespas.base.units import format_bytes_binary, parse_quantity
from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.compile.cache import CompiledCache, default_directory
from hespas.compile.compiled import CompiledProgram
from hespas.compile.compiler import DEFAULT_LIMITS, compile_program
from hespas.compile.job import Layout
from hespas.compile.options import CompileOptions, parse_size
from hespas.compile.targets import TpuTarget, find_target
from hespas.errors import ConfigError, OutputError, UnsupportedError, option
from hespas.frontend.load import load_source
from hespas.frontend.whole import whole_of_source, with_device_order, with_mesh
from hespas.program.kernels import encode_kernels
from hespas.program.program import instructions_digest
from hespas.sources.options import ModelOptions
from hespas.sources.source import find_source
from hespas.sources.workload import export_cache, read_workload


def _parse_time_limit(text: str) -> float:
    limit_s = parse_quantity(text, "s", location=option("time_limit"))
    if limit_s <= 0:
        raise ConfigError("the time limit is not positive", location=option("time_limit"))
    return limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """How to compile: the devices, the compiler's options, its limits, and the cache."""

    devices: int | None = declare(
        Option(help="How many devices, if not said.", aliases=("num_npus",))
    )
    devices_per_host: int | None = declare(
        Option(help="GPUs of a host.", default_text="8; 4 for GB200 and GB300")
    )
    topology: str | None = declare(
        Option(help="Chips of a TPU slice, as in 4x4.", default_text="by the devices")
    )
    options: CompileOptions = field(default_factory=CompileOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    time_limit_s: float = declare(
        Option(
            help="How long it may take.",
            name="time_limit",
            parse=_parse_time_limit,
            metavar="TIME",
            group=Group.CACHES,
            default_text="3600s",
        ),
        default=DEFAULT_LIMITS.time_s,
    )
    memory_limit_bytes: int | None = declare(
        Option(
            help="How much it may address.",
            name="memory_limit",
            parse=partial(parse_size, name="memory_limit"),
            metavar="SIZE",
            group=Group.CACHES,
            default_text="32GiB",
        ),
        default=DEFAULT_LIMITS.memory_bytes,
    )
    disable_cache: bool = declare(
        Option(help="Compile, and keep nothing.", one_of="cache", group=Group.CACHES),
        default=False,
    )
    cache_dir: Path | None = declare(
        Option(
            help="Where compiled programs are cached.",
            default_text="~/.cache",
            metavar="DIR",
            one_of="cache",
            group=Group.CACHES,
        )
    )

    @property
    def cache(self) -> CompiledCache | None:
        """Where compiled programs are cached; None for nowhere."""
        if self.disable_cache:
            return None
        return CompiledCache(directory=self.cache_dir or default_directory())

    @property
    def exported(self) -> ContentCache | None:
        """Where exported models are cached; None for nowhere."""
        if self.disable_cache:
            return None
        return export_cache(self.cache_dir or cache_home() / "exported")


@flags.command(
    "compile",
    short_help="Optimise and schedule a program as a target's compiler does.",
    example="hespas compile step.mlir --target H100_SXM -o step.hlo",
)
@click.argument("program", type=flags.FILE)
@flags.plain("--target", required=True, metavar="TARGET", help="What to compile for.")
@flags.both(
    "output", "-o", type=flags.FILE, metavar="FILE", help="HLO text; a proto if it ends in .pb."
)
@flags.plain("--kernels", type=flags.FILE, metavar="FILE", help="The kernels of a GPU, as JSON.")
@flags.derived(_Request)
@flags.json_option
@flags.common
def command(
    *,
    program: Path,
    target: str,
    output: Path | None,
    kernels: Path | None,
    json_file: str | None,
    log_level: str | None,
    log_path: Path | None,
    **given: Any,
) -> None:
    """Compile PROGRAM for a target that isn't there.

    PROGRAM is StableHLO before or after partitioning, a model (hespas export --list), or one's own
    package.module:function.

    TARGET is a GPU or TPU (H100_SXM, TPUv5e), the node preset of one, or a file with XLA's
    description of a GPU. Needs hespas[gpu] or hespas[tpu].
    """
    flags.start_logging(log_level, log_path)
    request = flags.built(_Request, given)
    source = find_source(
        str(program), request.model, devices=request.devices, target=target, loops=True
    )
    _check_files(target, json_file, output, kernels)
    workload = read_workload(source, kept=request.exported)
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
        whole = whole_of_source(workload.content, name=workload.name)
        content = compiled.hlo_proto if is_proto else compiled.hlo_text.encode()
        kept = with_device_order(with_mesh(content, whole.mesh), whole.device_order)
        write_file(output, kept)
    if json_file is not None:
        write_json(json_file, compiled_json(compiled))
    if json_file != "-":
        click.echo(compiled_text(compiled))


def _check_files(
    target: str, json_file: str | None, output: Path | None, kernels: Path | None
) -> None:
    """Refuse files that can't be written before the work, not after it."""
    check_targets(json_file, None)
    named = [file for file in (output, kernels) if file is not None]
    for file in named:
        check_file(file)
    if len(named) == 2 and named[0].absolute() == named[1].absolute():
        raise OutputError("is named twice", location=str(output), hint="name two files")
    if kernels is not None and isinstance(find_target(target), TpuTarget):
        raise ConfigError("the kernels of a TPU are not readable", hint="drop --kernels")


def _write_kernels(compiled: CompiledProgram, file: Path) -> None:
    if compiled.kernels is None:
        raise UnsupportedError("; ".join(compiled.notes), location=compiled.name)
    program = load_source(compiled.hlo_proto, name=compiled.name)
    kernels = replace(compiled.kernels, program=instructions_digest(program))
    write_file(file, encode_kernels(kernels))


def compiled_json(compiled: CompiledProgram) -> Mapping[str, object]:
    """Return what is known of a compiled program beside the program, as JSON values."""
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
    """Return a summary for people."""
    memory = compiled.memory
    shown = {
        "arguments": memory.argument_bytes,
        "outputs": memory.output_bytes,
        "of these in place": memory.alias_bytes,
        "temporary": memory.temporary_bytes,
        "code": memory.generated_code_bytes,
        "together": memory.total_bytes,
    }
    sizes = ", ".join(f"{what} {format_bytes_binary(size)}" for what, size in shown.items())
    host = f"; of its host: {format_bytes_binary(memory.host_bytes)}" if memory.host_bytes else ""
    made = " and ".join(f"{name} {number}" for name, number in compiled.versions.items())
    devices = f"{compiled.replicas} replicas x {compiled.partitions} partitions"
    lines = [
        f"Compiled for {compiled.target} ({compiled.topology}): {devices}",
        f"Compilers: {made}",
        f"Memory of a device: {sizes}{host}",
    ]
    if compiled.kernels is not None:
        count, distinct = len(compiled.kernels.launches), len(compiled.kernels.ptx)
        lines.append(f"Kernels: {count} launches of {distinct}")
    return "\n".join([*lines, *(f"Note: {note}" for note in compiled.notes)])
