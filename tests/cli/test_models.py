from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hespas.simulate.options import CHOICES

Call = Callable[..., CompletedProcess[str]]
SYSTEM = ("--system", "V100_32GB_4GPU")
OWN = ("--model", "hespas")


@pytest.fixture
def traces(call: Call, block: Path) -> str:
    done = call("hespas", "trace", block, "--node", "A100_SXM_40GB", "--output", "out")
    assert done.returncode == 0, done.stderr
    return "out"


def test_both_models_time_traces(call: Call, traces: str) -> None:
    plain = call("hespas", "simulate", traces, *SYSTEM, "--json", "plain.json")
    own = call("hespas", "simulate", traces, *SYSTEM, *OWN, "--json", "own.json")

    assert plain.returncode == own.returncode == 0, own.stderr
    assert "all_reduce runs as ring" in own.stdout
    ours, theirs = (json.loads(Path(name).read_text()) for name in ("own.json", "plain.json"))
    assert ours["model"] == "hespas"
    assert ours["step_time_ns"] == theirs["step_time_ns"]


def test_the_algorithm_has_an_effect(call: Call, traces: str) -> None:
    def time(algorithm: str) -> float:
        done = call("hespas", "simulate", traces, *SYSTEM, *OWN, "--algorithm", algorithm, "--json")
        return json.loads(done.stdout)["step_time_ns"]

    assert time("auto") <= time("direct") < time("ring")


def test_the_command_knows_all_algorithms(call: Call) -> None:
    text = call("hespas", "simulate", "--help").stdout.replace("\n", "").replace(" ", "")

    assert all(choice in text for choice in CHOICES)


def test_run_takes_the_model_too(call: Call, block: Path) -> None:
    done = call("hespas", "run", block, "--node", "A100_SXM_40GB", *SYSTEM, *OWN, "--json")

    assert done.returncode == 0, done.stderr
    assert any("max-min" in one for one in json.loads(done.stdout)["assumptions"])


@pytest.mark.parametrize("model", ["astra-sim", "hespas"])
def test_a_cluster_slows_a_job_down(call: Call, traces: str, model: str) -> None:
    Path("cluster.yml").write_text("devices: [{devices: 3, compute_scale: 2}]")
    base = ("hespas", "simulate", traces, *SYSTEM, "--model", model, "--json")

    plain, slow = (json.loads(call(*base, *more).stdout)["step_time_ns"]
                   for more in ((), ("--imperfect", "cluster.yml")))  # fmt: skip

    assert slow > 1.1 * plain


@pytest.mark.parametrize("model", ["astra-sim", "hespas"])
def test_a_slow_device_is_charged_to_the_stragglers(call: Call, block: Path, model: str) -> None:
    Path("cluster.yml").write_text("devices: [{devices: 3, compute_scale: 1.3}]")
    base = ("hespas", "run", block, "--node", "A100_SXM_40GB", *SYSTEM, "--model", model)

    plain = json.loads(call(*base, "--json").stdout)
    slow = json.loads(call(*base, "--imperfect", "cluster.yml", "--json").stdout)
    text = call(*base, "--imperfect", "cluster.yml").stdout

    assert plain["straggler_s"] == 0
    assert slow["straggler_s"] == pytest.approx(0.3 * plain["compute_s"], rel=1e-6)
    for key in ("compute_s", "communication_s", "exposed_communication_s"):
        assert slow[key] == plain[key]
    assert slow["step_time_s"] == pytest.approx(
        slow["compute_s"] + slow["exposed_communication_s"] + slow["straggler_s"], abs=1e-11
    )
    assert "imperfections: cluster.yml: 1 slow device (x1.3)" in slow["assumptions"]
    assert "  stragglers " in text
    assert "imperfections: cluster.yml: 1 slow device (x1.3)" in text


def test_simulate_gives_the_parts_of_a_step_on_an_imperfect_cluster(
    call: Call, traces: str
) -> None:
    Path("cluster.yml").write_text("devices: [{devices: 3, delay_s: 0.001}]")
    base = ("hespas", "simulate", traces, *SYSTEM)

    plain = json.loads(call(*base, "--json").stdout)
    late = json.loads(call(*base, "--imperfect", "cluster.yml", "--json").stdout)
    text = call(*base, "--imperfect", "cluster.yml").stdout

    assert "straggler_ns" not in plain
    assert late["straggler_ns"] == late["step_time_ns"] - plain["step_time_ns"] == 1e6
    assert late["step_time_ns"] == pytest.approx(
        late["compute_ns"] + late["exposed_communication_ns"] + late["straggler_ns"]
    )
    assert late["assumptions"] == ["imperfections: cluster.yml: 1 late device (1 ms)"]
    assert "stragglers" in text
    assert "1 late device" in text


def test_a_node_on_the_system_of_another_part_is_warned_of(call: Call, block: Path) -> None:
    done = call("hespas", "run", block, "--node", "H100_80GB", *SYSTEM, "--json")

    assert done.returncode == 0, done.stderr
    (warning,) = json.loads(done.stdout)["warnings"]
    assert "is made of" in warning


def test_a_cluster_may_run_several_programs(call: Call, traces: str) -> None:
    Path("cluster.yml").write_text(
        f"programs: [{{traces: {traces}, devices: 0-3}}, {{traces: {traces}, devices: 4-7}}]"
    )
    system = ("--system", "V100_32GB_8GPU")

    done = call("hespas", "simulate", traces, *system, *OWN, "--imperfect", "cluster.yml", "--json")

    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["devices"]) == 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((*OWN, "--network", "congestion-aware"), "--network has no effect on the model hespas"),
        ((*OWN, "--num-queues-per-dim", "2"), "--num-queues-per-dim has no effect"),
        ((*OWN, "--injection-scale", "2"), "--injection-scale has no effect"),
        ((*OWN, "--rendezvous-protocol"), "--rendezvous-protocol has no effect"),
        (("--algorithm", "ring"), "--algorithm has no effect on the model astra-sim"),
        (("--backend", "astra-sim", *OWN), "--model has no effect on another --backend"),
        (("--imperfect", "absent.yml"), "cannot be read"),
        (("--cluster", "absent.yml"), "cannot be read"),
    ],
    ids=str,
)
def test_flags_without_effect_are_refused(
    call: Call, traces: str, flags: tuple[str, ...], message: str
) -> None:
    done = call("hespas", "simulate", traces, *SYSTEM, *flags)

    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("flag", [OWN, ("--algorithm", "ring"), ("--imperfect", "c.yml")], ids=str)
def test_a_model_needs_a_system(call: Call, block: Path, flag: tuple[str, str]) -> None:
    done = call("hespas", "run", block, "--node", "A100_SXM_40GB", *flag)

    assert done.returncode == 2
    assert f"{flag[0]} has no effect without --cluster" in done.stderr
