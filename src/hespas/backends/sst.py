"""Run SST, the Structural Simulation Toolkit: ``--backend sst``.

SST runs a Python file, which builds a merlin network and the job that plays each rank's actions as
SIRIUS traces. Formats as in SST 16.0.0.

One dimension with a switch is merlin's single router, rings are a torus. Registration and matching
delays of firefly are 0: they belong to the host's processor. A link carries no more than a buffer
in the time in which a credit comes back, so buffers hold more than it carries meanwhile.

A trace is one binary file for each rank, as ember's motif ``SIRIUSTrace`` reads it. A record is
little-endian: ``uint32`` kind, ``double`` start in seconds, the call's arguments, ``double`` end,
``int32`` result. Computation is the time from the end of a record to the start of the next. Each
exchange is IRECV for all incoming messages, SEND for all outgoing ones, WAIT for the former. FINI
does not wait for the computation before it. If a rank computes last, all have a BARRIER, which
does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from math import ceil
from pathlib import Path
from struct import Struct

from hespas.backends.network_program import (
    LinkRate,
    ProgramOptions,
    check_answer,
    dimensions_text,
    find_program,
    least_of_ranks_ps,
    messages_of,
    run_on_files,
)
from hespas.backends.rank_programs import Action, Exchange, Transfer, Wait
from hespas.backends.result import ExternalResult
from hespas.base.units import PS_PER_S
from hespas.errors import SimulationError, ToolError
from hespas.hardware.interconnect import Dimension, Shape
from hespas.hardware.system import System
from hespas.tasks.graph import Job

PROGRAM, VARIABLE = "sst", "SST_BINARY"
_PREFIX, _NETWORK = "rank", "network.py"
_TIME = re.compile(
    r"simulated time:\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*(ps|ns|us|ms|s|[kK]s|Ms)\b"
)
_NS = {"ps": 1e-3, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "ks": 1e12, "Ks": 1e12, "Ms": 1e15}
_CLOCK_ENDS_NS = 0.99 * 2**64 / 1e3
"""SST counts ps in 64 bits and reports the largest time if a packet never leaves."""


def run_sst(job: Job, system: System, directory: Path, options: ProgramOptions) -> ExternalResult:
    """Return SST's time for a job on a system.

    It has no times of single ranks. Raises the errors of `hespas.backends.network_program.Backend`.
    """
    programs = messages_of(job, system, options)
    program = find_program(PROGRAM, VARIABLE, options.program, source="SST with its elements")
    network = network_text(system)
    link = link_of(system)
    rate = LinkRate(bytes_per_s=link.bandwidth_bytes_per_s, latency_s=link.latency_s)
    least_ps = least_of_ranks_ps(programs.ranks, rate)
    log = run_on_files(
        [str(program), *options.arguments, _NETWORK],
        {**traces(programs.ranks), _NETWORK: network.encode()},
        name="SST",
        directory=directory,
        time_limit_s=options.time_limit_s,
    )
    result = ExternalResult(
        engine=PROGRAM,
        devices={},
        step_ns=simulated_ns(log.read_text(errors="replace"), str(log)),
        notes=(*programs.notes, "SST does not say when single devices end"),
        log=log,
    )
    return check_answer(result, least_ps)


def simulated_ns(text: str, location: str) -> int:
    """Return the time in SST's last line.

    >>> simulated_ns("Simulation is complete, simulated time: 2.055 ms", "log.txt")
    2055000
    """
    times = _TIME.findall(text)
    if not times:
        raise ToolError("SST printed no simulated time", location=location, hint="read its log")
    number, unit = times[-1]
    time_ns = float(number) * _NS[unit]
    if not time_ns < _CLOCK_ENDS_NS:
        raise ToolError("SST's clock ran to its end", location=location, hint="read its log")
    return round(time_ns)


_ROUND_TRIPS, _LEAST_BUFFER_BYTES = 2, 16_000_000
"""The least round trips of a link that a buffer holds, and the least tested size."""
_HINT = "simulate it by hespas: --backend hespas"
_SCRIPT = """# Written by hespas. Run it with: sst network.py
import sst
from sst.merlin.base import *
from sst.merlin.endpoint import *
from sst.merlin.interface import *
from sst.merlin.topology import *
from sst.ember import *

PlatformDefinition.setCurrentPlatform("firefly-defaults")

{topology}
topology.link_latency = "{latency}"

router = hr_router()
router.link_bw = "{bandwidth}"
router.xbar_bw = "{bandwidth}"
router.flit_size = "64B"
router.input_latency = "0ns"
router.output_latency = "0ns"
router.input_buf_size = "{buffer}"
router.output_buf_size = "{buffer}"
router.num_vns = 2
router.xbar_arb = "merlin.xbar_arb_lru"
topology.router = router

interface = ReorderLinkControl()
interface.link_bw = "{bandwidth}"
interface.input_buf_size = "{buffer}"
interface.output_buf_size = "{buffer}"

job = EmberMPIJob(0, {devices})
job.network_interface = interface
job.os.ctrl.regRegionBaseDelay_ns = 0
job.os.ctrl.regRegionPerPageDelay_ns = 0
job.os.ctrl.matchDelay_ns = 0
job.addMotif("Init")
job.addMotif("SIRIUSTrace traceprefix={prefix}")
job.addMotif("Fini")

system = System()
system.setTopology(topology)
system.allocateNodes(job, "linear")
system.build()
"""


def network_text(system: System) -> str:
    """Return the network file for a system with traces ``rank.RANK``.

    Raises `SimulationError` for a network that is neither merlin's single router nor its torus.
    """
    link = link_of(system)
    round_trip_bytes = link.bandwidth_bytes_per_s * 2 * link.latency_s
    return _SCRIPT.format(
        topology="\n".join(_topology(system)),
        latency=f"{link.latency_s * 1e9:.12g}ns",
        bandwidth=f"{link.bandwidth_bytes_per_s:.12g}B/s",
        buffer=f"{max(_LEAST_BUFFER_BYTES, ceil(_ROUND_TRIPS * round_trip_bytes))}B",
        devices=system.device_count,
        prefix=_PREFIX,
    )


def link_of(system: System) -> Dimension:
    """Return a dimension of the network; `SimulationError` without one."""
    used = next((dimension for dimension in system.dimensions if dimension.size > 1), None)
    if used is None:
        raise SimulationError("there is no network to simulate", location=system.name, hint=_HINT)
    return used


def _topology(system: System) -> list[str]:
    first = link_of(system)
    dimensions = [dimension for dimension in system.dimensions if dimension.size > 1]
    if len(dimensions) == 1 and first.shape is Shape.SWITCH:
        return ["topology = topoSingle()", f"topology.num_ports = {first.size}"]
    kinds = {dimension.shape for dimension in dimensions}
    rates = {(dimension.bandwidth_bytes_per_s, dimension.latency_s) for dimension in dimensions}
    if kinds != {Shape.RING} or len(rates) > 1:
        raise SimulationError(
            "SST's network is written for one switch, or for rings of equal links, and the system "
            f"is {dimensions_text(system)}",
            location=system.name,
            hint=_HINT,
        )
    shape = "x".join(str(dimension.size) for dimension in dimensions)
    width = "x".join("1" for _ in dimensions)
    return [
        "topology = topoTorus()",
        f'topology.shape = "{shape}"',
        f'topology.width = "{width}"',
        "topology.local_ports = 1",
    ]


_INIT, _FINI, _SEND, _IRECV, _BARRIER, _WAIT = 1, 2, 4, 17, 64, 128
_CHAR, _WORLD, _NO_BUFFER = 4, 0, 0
_HEAD, _TAIL = Struct("<Id"), Struct("<di")
_ARGUMENTS = {
    _INIT: Struct("<"),
    _FINI: Struct("<"),
    # Buffer, count, datatype, the other rank, tag, communicator.
    _SEND: Struct("<QIIiiI"),
    # The arguments of SEND, and the request that WAIT names.
    _IRECV: Struct("<QIIiiIQ"),
    # Communicator.
    _BARRIER: Struct("<I"),
    # Request, status.
    _WAIT: Struct("<QQ"),
}
_MOST_BYTES = 2**32 - 1


def traces(ranks: Sequence[Sequence[Action]]) -> dict[str, bytes]:
    """Return all trace files; `SimulationError` for messages of 4 GiB."""
    computes_last = any(isinstance(action, Wait) for actions in ranks for action in actions[-1:])
    return {
        f"{_PREFIX}.{rank}": trace_bytes(actions, ends_with_barrier=computes_last)
        for rank, actions in enumerate(ranks)
    }


def trace_bytes(actions: Sequence[Action], *, ends_with_barrier: bool = False) -> bytes:
    """Return the trace of a rank."""
    return b"".join(_records(actions, ends_with_barrier=ends_with_barrier))


def _records(actions: Sequence[Action], *, ends_with_barrier: bool) -> Iterator[bytes]:
    now_ps = 0
    requests = count(1)
    yield _record(_INIT, now_ps)
    for action in actions:
        match action:
            case Wait(duration_ps=duration_ps):
                now_ps += duration_ps
            case Exchange(sends=sends, receives=receives):
                pending = [next(requests) for _ in receives]
                for transfer, request in zip(receives, pending, strict=True):
                    yield _record(_IRECV, now_ps, *_arguments(transfer), request)
                for transfer in sends:
                    yield _record(_SEND, now_ps, *_arguments(transfer))
                for request in pending:
                    yield _record(_WAIT, now_ps, request, 0)
    if ends_with_barrier:
        yield _record(_BARRIER, now_ps, _WORLD)
    yield _record(_FINI, now_ps)


def _record(kind: int, now_ps: int, *arguments: int) -> bytes:
    now_s = now_ps / PS_PER_S
    return _HEAD.pack(kind, now_s) + _ARGUMENTS[kind].pack(*arguments) + _TAIL.pack(now_s, 0)


def _arguments(transfer: Transfer) -> tuple[int, ...]:
    """Return a call's arguments; `SimulationError` from 4 GiB on."""
    size_bytes = transfer.size_bytes
    if size_bytes > _MOST_BYTES:
        message = f"a message has {size_bytes} bytes, and SST's traces count to {_MOST_BYTES}"
        raise SimulationError(message, hint=_HINT)
    return _NO_BUFFER, size_bytes, _CHAR, transfer.peer, transfer.tag, _WORLD
