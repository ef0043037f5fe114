"""Links and memory of other bandwidths than the cluster's: what if they were faster or slower."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

Call = Callable[..., CompletedProcess[str]]
CLUSTER = ("--cluster", "8xH100_80GB")
RING = "llama3-100m", "--mesh", "fsdp=8", "--set", "layers=2", "--sequence", "512"


def answer(done: CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_clusters_part_stands_in_for_the_node(call: Call, block: Path) -> None:
    words = ("run", block, "--as-exported", "--memory-bandwidth", "1TB/s", "--json", "-")
    cluster = ("--cluster", "4xA100_SXM_40GB")
    by_cluster = answer(call("hespas", *words, *cluster))
    by_node = answer(call("hespas", *words, *cluster, "--node", "A100_SXM_40GB"))
    own = answer(call("hespas", "run", block, "--as-exported", *cluster, "--json", "-"))
    assert by_cluster["compute_s"] == by_node["compute_s"] > own["compute_s"]
    noted = "device: the memory bandwidth of A100_SXM_40GB is 1 TB/s, as given"
    assert noted in by_cluster["assumptions"]
    assert noted not in own["assumptions"]


def test_slower_links_are_in_the_answer(call: Call) -> None:
    words = ("run", *RING, *CLUSTER, "--json", "-")
    given = ("--link-bandwidth", "0=45GB/s", "--memory-bandwidth", "1TB/s")
    found = answer(call("hespas", *words, *given))
    # No collective is faster than its links: nccl-tests' bus bandwidth of NVLink at a tenth.
    reached = [row["bytes_per_s"] for row in found["communication"] if row["bytes"] > 1e6]
    assert reached
    assert all(0.5 * 45e9 < rate <= 45e9 * 1.001 for rate in reached)
    assert found["options"]["link_bandwidth"] == ["0=4.5e+10B/s"]
    assert any("dimension 0 (8 devices): 45 GB/s each" in each for each in found["assumptions"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*RING, *CLUSTER, "--link-bandwidth", "nvlink=x2"), "write DIM=xFACTOR or DIM=RATE"),
        ((*RING, *CLUSTER, "--link-bandwidth", "1=x2"), "dimension 1 of 8xH100_80GB is not there"),
        (
            ("gemm", "--node", "H100_80GB", "--link-bandwidth", "0=x2"),
            "no effect without --cluster",
        ),
        (("gemm", *CLUSTER, "--link-bandwidth", "0=x2"), "sends nothing along dimension 0"),
    ],
)
def test_what_has_no_effect_is_refused(call: Call, words: tuple[str, ...], message: str) -> None:
    done = call("hespas", "run", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
