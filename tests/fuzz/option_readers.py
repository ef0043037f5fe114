"""Readers of what options name: studies, prices, loads of experts, schedules, flags, results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzz.good_files import FLAGS, LOOPS, PRICES, SCHEDULE, STUDY
from fuzz.mutators import Form
from fuzz.reader import NODE, SYSTEM, Reader, at, hespas

CLUSTER = ("--cluster", "4xA100_SXM_40GB")
SMALL = (
    *("--sequence", "128", "--batch", "2", "--micro-batches", "2", "--set", "embedding=64"),
    *("--set", "heads=2", "--set", "kv_heads=2", "--set", "mlp=64", "--set", "head_size=32"),
    *("--set", "vocabulary=256", "--set", "layers=2"),
)


def options(home: Path) -> Iterator[Reader]:
    """Yield the readers of files that options name."""
    yield from _studies(home)
    yield from _loads(home)
    yield from _pages(home)
    directory = at(
        home, "recipes", {"step.mlir": LOOPS, "flags.txt": FLAGS, "schedule.txt": SCHEDULE}
    )
    yield Reader(
        name="flags of XLA",
        directory=directory,
        file="flags.txt",
        form=Form.TEXT,
        words=("run", "step.mlir", *CLUSTER, "--xla-flags-file", "flags.txt"),
        shows_cuts=False,
        needs="hespas[gpu]",
    )
    yield Reader(
        name="schedules of pipelines",
        directory=directory,
        file="schedule.txt",
        form=Form.TEXT,
        words=(
            *("run", "llama3-100m", "--mesh", "pipe=2,data=2", *CLUSTER, *SMALL, "--as-exported"),
            *("--schedule", "schedule.txt"),
        ),
        shows_cuts=False,
        is_slow=True,
    )
    directory = at(home, "published", {"step.mlir": LOOPS, "steps.csv": PUBLISHED})
    yield Reader(
        name="published steps (CSV)",
        directory=directory,
        file="steps.csv",
        form=Form.TEXT,
        words=("validate", "--all", "steps.csv", "--group", "mine", "--json", "out.json"),
        shows_cuts=False,
        is_slow=True,
    )


PUBLISHED = (
    "family,workload,options,node,system,step_s,resolution_s,source\n"
    "mine,step.mlir,,A100_SXM_40GB,A100_SXM_40GB_4GPU,0.0003,0.0001,measured\n"
)


def _studies(home: Path) -> Iterator[Reader]:
    directory = at(home, "studies", {"step.mlir": LOOPS, "study.yml": STUDY, "prices.csv": PRICES})
    run = ("study", "run", "study.yml", "--workers", "1", "--time-limit", "9", "-o", "out")
    for name, file in (("studies (YAML)", "study.yml"), ("prices (CSV)", "prices.csv")):
        yield Reader(
            name=name,
            directory=directory,
            file=file,
            form=Form.TEXT,
            words=run,
            shows_cuts=False,
            is_slow=True,
        )
    prices = json.dumps(
        [{"part": "A100_SXM_40GB", "usd_per_device_hour": 1.5, "source": "a contract"}]
    )
    text = STUDY.replace("prices.csv", "prices.yml")
    directory = at(home, "priced", {"step.mlir": LOOPS, "study.yml": text, "prices.yml": prices})
    yield Reader(
        name="prices (YAML)",
        directory=directory,
        file="prices.yml",
        form=Form.JSON,
        words=run,
        shows_cuts=False,
        is_slow=True,
    )
    with chdir(directory):
        hespas(*run[:-1], "kept")
    for words in (
        ("study", "table", "kept", "--json", "out.json"),
        ("study", "resume", "kept", "--workers", "1", "--time-limit", "9"),
        ("study", "compare", "kept", "1", "2"),
        ("report", "kept", "-o", "out.html"),
    ):
        yield Reader(
            name="results of studies (SQLite)",
            directory=directory,
            file="kept/study.sqlite",
            form=Form.BINARY,
            words=words,
            is_slow=words[1] == "resume",
        )


def _loads(home: Path) -> Iterator[Reader]:
    from expert_programs import experts_on_four  # noqa: PLC0415 - it imports JAX

    table = "layer,expert,tokens\n" + "".join(f"0,{at},{at + 1}\n" for at in range(16))
    listed = json.dumps({"tokens": [[at + 1 for at in range(16)]]})
    directory = at(
        home, "loads", {"step.mlir": experts_on_four(), "load.csv": table, "load.json": listed}
    )
    for file, form in (("load.csv", Form.TEXT), ("load.json", Form.JSON)):
        yield Reader(
            name="loads of experts",
            directory=directory,
            file=file,
            form=form,
            words=("run", "step.mlir", *CLUSTER, "--as-exported", "--expert-load", file),
            shows_cuts=form is Form.JSON,
        )


def _pages(home: Path) -> Iterator[Reader]:
    directory = at(home, "pages", {"step.mlir": LOOPS})
    with chdir(directory):
        for name in ("a", "b"):
            hespas("run", "step.mlir", *SYSTEM, "--as-exported", "--json", f"{name}.json")
    for words in (("a.json",), ("a.json", "b.json")):
        yield Reader(
            name="results of runs (JSON)",
            directory=directory,
            file="a.json",
            form=Form.JSON,
            words=("report", *words, "-o", "out.html"),
        )


def kernels_of_authors(home: Path) -> Iterator[Reader]:
    """Yield the readers of kernels that programs carry: those of Pallas for TPUs, and Triton's."""

    from mosaic_kernels import matmul, shape  # noqa: PLC0415 - it imports JAX
    from triton_kernels import product  # noqa: PLC0415 - it imports JAX

    jax: Any = import_module("jax")
    traced = jax.jit(matmul(256, 256, 256, blocks=(128, 128, 128))).trace(
        shape(256, 256), shape(256, 256)
    )
    texts = {
        "TPU": traced.lower(lowering_platforms=("tpu",)).as_text(),
        "GPU": product(128, 128, 128),
    }
    for name, node in (("TPU", ("--node", "TPUv5e")), ("GPU", NODE)):
        yield Reader(
            name="kernels of Pallas",
            directory=at(home, f"kernels {name}", {"step.mlir": texts[name]}),
            file="step.mlir",
            form=Form.KERNEL,
            words=("estimate", "step.mlir", *node),
            shows_cuts=False,
        )
