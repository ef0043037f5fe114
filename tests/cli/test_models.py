from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hespas.simulate.flow.choices import CHOICES

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
                   for more in ((), ("--cluster", "cluster.yml")))  # fmt: skip

    assert slow > 1.1 * plain


def test_a_cluster_may_run_several_programs(call: Call, traces: str) -> None:
    Path("cluster.yml").write_text(
        f"programs: [{{traces: {traces}, devices: 0-3}}, {{traces: {traces}, devices: 4-7}}]"
    )
    system = ("--system", "V100_32GB_8GPU")

    done = call("hespas", "simulate", traces, *system, *OWN, "--cluster", "cluster.yml", "--json")

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


@pytest.mark.parametrize("flag", [OWN, ("--algorithm", "ring"), ("--cluster", "c.yml")], ids=str)
def test_a_model_needs_a_system(call: Call, block: Path, flag: tuple[str, str]) -> None:
    done = call("hespas", "run", block, "--node", "A100_SXM_40GB", *flag)

    assert done.returncode == 2
    assert f"{flag[0]} has no effect without --system" in done.stderr
