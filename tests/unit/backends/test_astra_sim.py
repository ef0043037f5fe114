"""ASTRA-sim in a process of its own, with a program in its place that speaks its formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.backends.astra_sim import (
    BINARY_VARIABLE,
    AstraSimOptions,
    find_binary,
    run_astra_sim,
    write_system,
)
from hespas.errors import (
    ConfigError,
    DeviceCountError,
    HespasError,
    SimulationError,
    ToolError,
)
from hespas.hardware.interconnect import switched
from hespas.hardware.presets import load_system
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind, System, bare_system, read_system
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.options import AstraSettings, ContentionModel
from hespas.tasks.graph import CollectiveTask, ComputeTask, ReceiveTask, SendTask, Task, TaskGraph

Install = Callable[..., Path]
SYSTEM = "A100_SXM_40GB_4GPU"
# It reads its inputs from the files that it is given, and simulates them exactly.
STAND_IN = """#!{python}
import sys
from pathlib import Path
from hespas.hardware.system import read_system
from hespas.simulate.options import AstraSettings, ContentionModel
from hespas.simulate.astra.simulate import simulate
from hespas.tasks.chakra.reader import read_traces

given = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
system = read_system(
    name="given",
    system_file=Path(given.pop("system-configuration")),
    network_file=Path(given.pop("network-configuration")),
    remote_memory_file=Path(given.pop("remote-memory-configuration")),
)
job = read_traces(
    Path(given.pop("workload-configuration")), Path(given.pop("comm-group-configuration"))
)
timeline = simulate(
    job,
    system,
    network=ContentionModel.{network},
    settings=AstraSettings(
        num_queues_per_dim=int(given.pop("num-queues-per-dim", "1")),
        rendezvous_protocol=given.pop("rendezvous-protocol", "false") == "true",
        injection_scale=float(given.pop("injection-scale", "1")),
    ),
)
assert not given, given
for device, figures in timeline.as_json()["devices"].items():
    {before}
    start = f"[2026-01-01 00:00:00.000] [workload] [info] sys[{{device}}]"
    finish, exposed = int(figures["finish_ns"]), int(figures["exposed_communication_ns"])
    print(f"{{start}} finished, {{finish}} cycles, exposed communication {{exposed}} cycles.")
    if {has_statistics}:
        print(f"[statistics] [info] sys[{{device}}], Wall time: {{finish}}")
        print(f"[statistics] [info] sys[{{device}}], GPU time: {{figures['compute_ns']}}")
        print(f"[statistics] [info] sys[{{device}}], Comm time: {{figures['communication_ns']}}")
        if figures["overlap_ns"]:
            overlap = figures["overlap_ns"]
            what = "Total compute-communication overlap"
            print(f"[statistics] [info] sys[{{device}}], {{what}}: {{overlap}}")
{after}
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return what puts the stand-in on the PATH, under ASTRA-sim's name."""

    def installed(
        *,
        network: ContentionModel = ContentionModel.CONGESTION_UNAWARE,
        before: str = "pass",
        after: str = "",
        has_statistics: bool = True,
    ) -> Path:
        words = "_".join(word.capitalize() for word in network.value.split("-"))
        path = tmp_path / "bin" / f"AstraSim_Analytical_{words}"
        path.parent.mkdir()
        text = STAND_IN.format(
            python=sys.executable,
            network=network.name,
            before=before,
            after=after,
            has_statistics=has_statistics,
        )
        path.write_text(text)
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
        return path

    return installed


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BINARY_VARIABLE, raising=False)


def graph(*, exact: bool = True) -> TaskGraph:
    """Return work of every kind, with groups, for four devices."""
    tasks: tuple[Task, ...] = (
        ComputeTask(id=1, name="a", depends_on=(), duration_ps=30_000_000 + (not exact)),
        CollectiveTask(
            id=2,
            name="world",
            depends_on=(1,),
            kind=CollectiveKind.ALL_REDUCE,
            size_bytes=1 << 20,
            group_table=None,
        ),
        ComputeTask(id=3, name="b", depends_on=(1,), duration_ps=7_000_000),
        CollectiveTask(
            id=4,
            name="pairs",
            depends_on=(2, 3),
            kind=CollectiveKind.ALL_GATHER,
            size_bytes=1 << 16,
            group_table=0,
        ),
        SendTask(id=5, name="s", depends_on=(4,), pairs=((0, 3),), size_bytes=1 << 20, tag=1),
        ReceiveTask(id=6, name="r", depends_on=(), pairs=((0, 3),), size_bytes=1 << 20, tag=1),
    )
    return TaskGraph(name="g", device_count=4, tasks=tasks, group_tables=((((0, 2), (1, 3))),))


def test_the_same_figures_come_back(tmp_path: Path, install: Install) -> None:
    install()
    system = load_system(SYSTEM)

    found = run_astra_sim(graph(), system, tmp_path / "run", AstraSimOptions())

    own = simulate(graph(), system).as_json()
    assert found.as_json() == {**own, "engine": "astra-sim", "notes": []}
    assert found.log == tmp_path / "run" / "log.txt"
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "workload.3.et",
        "comm_group.json",
        "system.json",
        "network.yml",
        "remote_memory.json",
        "log.txt",
    }


def test_every_option_is_handed_on(tmp_path: Path, install: Install) -> None:
    install(network=ContentionModel.CONGESTION_AWARE)
    system = replace(load_system(SYSTEM), preferred_dataset_splits=4)
    network = ContentionModel.CONGESTION_AWARE
    settings = AstraSettings(num_queues_per_dim=2, rendezvous_protocol=True, injection_scale=3.5)
    options = AstraSimOptions(network=network, settings=settings)

    found = run_astra_sim(graph(), system, tmp_path / "run", options)

    own = simulate(graph(), system, network=network, settings=settings)
    assert found.finish_ns == own.finish_ps // 1000
    assert found.finish_ns != simulate(graph(), load_system(SYSTEM)).finish_ps // 1000


def test_what_rounding_loses_is_reported(tmp_path: Path, install: Install) -> None:
    install()

    found = run_astra_sim(
        graph(exact=False), load_system(SYSTEM), tmp_path / "run", AstraSimOptions()
    )

    assert found.notes == (
        "1 computations are rounded to whole microseconds, as ASTRA-sim reads them",
    )


def test_figures_that_are_not_printed_are_absent(tmp_path: Path, install: Install) -> None:
    install(has_statistics=False)

    found = run_astra_sim(graph(), load_system(SYSTEM), tmp_path / "run", AstraSimOptions())

    finish_ns = simulate(graph(), load_system(SYSTEM)).of_device(1).finish_ps // 1000
    assert found.devices[1].finish_ns == finish_ns
    assert found.devices[1].compute_ns is None
    assert "overlap_ns" not in str(found.as_json())


def test_a_crash_after_the_results_is_reported_and_one_before_them_is_an_error(
    tmp_path: Path, install: Install
) -> None:
    path = install(after="import os; sys.stdout.flush(); os.abort()")
    system = load_system(SYSTEM)

    found = run_astra_sim(graph(), system, tmp_path / "run", AstraSimOptions())

    assert found.finish_ns == simulate(graph(), system).finish_ps // 1000
    assert "failed after its results: ASTRA-sim was ended by SIGABRT" in found.notes[0]
    path.write_text(path.read_text().replace("    pass", "    assert device == '0', 'oh'"))
    with pytest.raises(ToolError, match=r"log\.txt: ASTRA-sim failed with code 1: .*oh"):
        run_astra_sim(graph(), system, tmp_path / "run", AstraSimOptions())


def test_devices_that_never_finish_are_named(tmp_path: Path, install: Install) -> None:
    install(before="if device in '12': continue")

    with pytest.raises(SimulationError, match="devices 1-2 never finished") as caught:
        run_astra_sim(graph(), load_system(SYSTEM), tmp_path / "run", AstraSimOptions())

    assert caught.value.location == str(tmp_path / "run" / "log.txt")


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path, install: Install) -> None:
    path = install()
    path.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")

    with pytest.raises(ToolError, match=r"took longer than 0\.5 s"):
        run_astra_sim(
            graph(), load_system(SYSTEM), tmp_path / "run", AstraSimOptions(time_limit_s=0.5)
        )


def test_a_job_of_another_size_is_refused(tmp_path: Path, install: Install) -> None:
    install()

    with pytest.raises(DeviceCountError, match="for 4 devices"):
        run_astra_sim(
            graph(), load_system("A100_SXM_40GB_8GPU"), tmp_path / "run", AstraSimOptions()
        )


def test_the_program_is_the_one_given_or_of_the_environment_or_on_the_path(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = ContentionModel.CONGESTION_UNAWARE
    path = install()
    other, third = (tmp_path / name for name in ("other", "third"))
    for copy in (other, third):
        copy.write_text(path.read_text())
        copy.chmod(0o755)

    assert find_binary(network) == path
    monkeypatch.setenv(BINARY_VARIABLE, str(other))
    assert find_binary(network) == other
    assert find_binary(network, third) == third


@pytest.mark.parametrize("given", [None, Path("/nowhere/astra")])
def test_without_a_program_it_is_reported_what_to_do(
    given: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(ToolError) as caught:
        find_binary(ContentionModel.CONGESTION_AWARE, given)

    name = "AstraSim_Analytical_Congestion_Aware"
    wrong = "there is no program /nowhere/astra" if given else f"{name} is not on the PATH"
    assert str(caught.value).startswith(f"{name}: {wrong}")
    assert "build ASTRA-sim's analytical front end" in str(caught.value)
    assert BINARY_VARIABLE in str(caught.value)


def written(system: System, directory: Path) -> System:
    system_file, network, memory = write_system(system, directory)
    return read_system(
        name=system.name,
        system_file=system_file,
        network_file=network,
        remote_memory_file=memory,
    )


@pytest.mark.parametrize("name", ["A100_SXM_40GB_4GPU_8", "TPUv3_4_2", "A40_48GB_2GPU"])
def test_a_written_system_reads_as_the_same(name: str, tmp_path: Path) -> None:
    system = replace(load_system(name), interconnect=None)

    assert written(system, tmp_path) == system


def test_every_field_of_a_system_is_written(tmp_path: Path) -> None:
    system = replace(
        load_system(SYSTEM),
        interconnect=None,
        local_memory_bandwidth_bytes_per_s=None,
        implementations={CollectiveKind.ALL_REDUCE: ("oneDirect2",)},
        remote_memory=RemoteMemory(
            kind=RemoteMemoryKind.PER_NODE_MEMORY_EXPANSION,
            latency_s=1.5e-9,
            bandwidth_bytes_per_s=100e9,
            nodes=2,
            npus_per_node=2,
        ),
        options={"roofline-enabled": 1, "peak-perf": 300.0},
    )

    assert written(system, tmp_path) == system


def test_paths_of_custom_collectives_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, object] = {
        "all-reduce-implementation-custom": ["custom/a"],
        "per-node-custom-implementation": "custom/per_node.yml",
    }
    system = replace(load_system(SYSTEM), options=options)

    assert written(system, tmp_path).options == {
        "all-reduce-implementation-custom": [str(tmp_path / "custom/a")],
        "per-node-custom-implementation": str(tmp_path / "custom/per_node.yml"),
    }
    xml = replace(system, options={"all-reduce-implementation-custom": ["a.xml"]})
    with pytest.raises(ConfigError, match=r"ASTRA-sim reads no XML: a\.xml; .*--chakra"):
        write_system(xml, tmp_path)


def test_a_network_that_astra_sim_cannot_describe_is_refused(tmp_path: Path) -> None:
    network = switched(4, bandwidth_bytes_per_s=1e9, latency_s=1e-6)

    with pytest.raises(ConfigError, match="reads no network of hespas' own model"):
        write_system(bare_system(network.name, interconnect=network), tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # A counter of 64 bits that went below zero.
        (
            "finished, 900000 cycles, exposed communication 18446744073709551000",
            "ends after 900,000",
        ),
        ("finished, 1.02384e+09 cycles, exposed communication 0", "never finished"),
        ("finished, nan cycles, exposed communication 0", "never finished"),
        ("finished, 0 cycles, exposed communication 0", "astra-sim answers 0 s"),
    ],
)
def test_figures_that_cannot_be_are_an_error(tmp_path: Path, line: str, message: str) -> None:
    program = tmp_path / "astra"
    says = "\n".join(f"echo 'sys[{device}] {line} cycles.'" for device in range(4))
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    options = AstraSimOptions(binary=program)
    with pytest.raises(HespasError, match=message):
        run_astra_sim(graph(), load_system(SYSTEM), tmp_path / "run", options)
