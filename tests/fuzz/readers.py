"""The readers of hespas: for each a few good files, and the command that reads them."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from fuzz.good_files import BRIDGES, CLUSTER, HLO, INFRAGRAPH, LOOPS, MACHINE, PTX, SHARDED, SWAP
from fuzz.mutators import Form
from fuzz.option_readers import kernels_of_authors, options
from fuzz.reader import EXPORTED, NODE, ROOT, SYSTEM, Reader, at, hespas
from hespas.hardware.presets import PRESETS_DIRECTORY
from hespas.program.kernels import CompiledKernels, KernelLaunch, encode_kernels
from hespas.sources.exported import partitioned
from hespas.xla.hlo.module import read_hlo_module
from hespas.xla.hlo.schema import message_class
from hespas.xla.mlir.module import parse_mlir, printed

GEMM = "m,n,k,dtype,latency_us\n4096,4096,4096,bf16,900\n2048,2048,2048,bf16,130\n"
NCCL = (
    "# all_reduce_perf\n"
    + "".join(f"#  Rank {at} Group 0 Pid 1 on node device {at}\n" for at in range(4))
    + "#  (B) (elements) (us) (GB/s) (GB/s)\n"
    " 2048 512 float sum -1 12.0 0.17 0.26 0 12.0 0.17 0.26 0\n"
    " 134217728 33554432 float sum -1 1030.0 130.31 195.46 0 1030.0 130.31 195.46 0\n"
)
STEPS = (
    "workload,options,node,system,step_s,resolution_s\n"
    "step.hlo,,A100_SXM_40GB,A100_SXM_40GB_4GPU,0.0003,0.0001\n"
)
CONFIGURATION = {
    "mlir_file": "step.mlir",
    "split_strategy": "linear_split",
    "block_lim": 64,
    "perf_estimator": {
        "method": "roofline",
        "hardware": {
            "peak_flops": 9.7e12,
            "per_datatype_flops": {"f32": 19.5e12, "bf16": 312e12},
            "memory_bandwidth": 1555e9,
            "num_npus": 4,
        },
    },
}


def _bytecode(text: str) -> bytes:
    file = io.BytesIO()
    parse_mlir(text.encode(), name="step.mlir").handle.operation.write_bytecode(file)
    return file.getvalue()


def _portable(text: str) -> bytes:
    stablehlo: Any = import_module("jaxlib.mlir.dialects.stablehlo")
    handle = parse_mlir(text.encode(), name="step.mlir").handle
    made: bytes = stablehlo.serialize_portable_artifact(handle, stablehlo.get_current_version())
    return made


def _jax_export() -> bytes:
    """Return what jax.export writes: a module as bytecode, its length in front."""
    module = _bytecode(SHARDED)
    return b"head" + len(module).to_bytes(4, "little") + module


def make_readers(home: Path) -> tuple[Reader, ...]:
    """Write the good files to directories of their own, and return what reads them."""
    made: list[Reader] = []
    for make in _KINDS:
        made += make(home)
    return tuple(made)


def _programs(home: Path) -> Iterator[Reader]:
    block = (ROOT / "examples" / "attention_block.mlir").read_text()
    texts = {"block": (block, Form.TEXT), "loops": (LOOPS, Form.TEXT)}
    protos = {"bytecode": _bytecode(LOOPS), "portable artifact": _portable(LOOPS)}
    for name, (content, form) in [
        *texts.items(),
        *((n, (c, Form.BINARY)) for n, c in protos.items()),
    ]:
        label = f"StableHLO, {name}"
        directory = at(home, f"stablehlo {name}", {"step.mlir": content})
        for words in (("run", "step.mlir", *EXPORTED), ("run", "step.mlir", *SYSTEM)):
            yield Reader(
                name=label,
                directory=directory,
                file="step.mlir",
                form=form,
                words=words,
                is_slow=form is Form.BINARY,
            )
    directory = at(home, "stablehlo commands", {"step.mlir": LOOPS})
    for words in (
        ("analyze", "-e", "-s", "step.mlir"),
        ("split", "step.mlir", "-o", "out"),
        ("memory", "step.mlir", *NODE),
        ("kernels", "step.mlir", *NODE),
        ("explain", "step.mlir", *SYSTEM),
        ("trace", "step.mlir", *NODE, "-o", "out"),
        ("estimate", "step.mlir", "--node", "TPUv4"),
        ("run", "step.mlir", *SYSTEM, "--merge", "--model", "hespas", "--timeline", "out.json"),
    ):
        yield Reader(
            name="StableHLO, other commands",
            directory=directory,
            file="step.mlir",
            form=Form.TEXT,
            words=words,
        )
    yield Reader(
        name="StableHLO, sharded",
        directory=at(home, "stablehlo sharded", {"step.mlir": SHARDED}),
        file="step.mlir",
        form=Form.TEXT,
        words=("run", "step.mlir", *EXPORTED),
    )
    yield Reader(
        name="jax.export",
        directory=at(home, "jax export", {"step.bin": _jax_export()}),
        file="step.bin",
        form=Form.BINARY,
        words=("export", "step.bin", "-o", "out.mlir"),
        is_slow=True,
    )


_MODELS = {
    "resnet18": "stages=1-1 batch=2 image=32 mesh=data=4",
    "llama3-100m": (
        "layers=2 sequence=32 embedding=64 heads=2 kv_heads=1 head_size=32 mlp=96 vocabulary=250 "
        "batch=2 accumulation=2 scan=true mesh=fsdp=4"
    ),
    "mixtral-8x7b-decode": (
        "layers=1 embedding=64 heads=4 kv_heads=4 mlp=96 vocabulary=256 context=32 mesh=tp=4"
    ),
}
"""Small models with what larger ones are made of: what is fused, and what takes memory."""


def _models(home: Path) -> Iterator[Reader]:
    export: Any = import_module("hespas.sources.function")
    for name, settings in _MODELS.items():
        given = dict(setting.split("=", 1) for setting in settings.split())
        module = parse_mlir(partitioned(export.export_model(name, given)).content, name=name)
        text = printed(module.handle, with_locations=False)
        directory = at(home, f"model {name}", {"step.mlir": text})
        for command in (("run", "step.mlir", *SYSTEM), ("memory", "step.mlir", *NODE)):
            yield Reader(
                name="StableHLO, models",
                directory=directory,
                file="step.mlir",
                form=Form.PROGRAM,
                words=command,
                is_slow=True,
            )


def _compiled(home: Path) -> Iterator[Reader]:
    tpu = (ROOT / "tests" / "laws" / "tpu_v5e.hlo").read_text()
    for name, text, node in (("GPU", HLO, SYSTEM), ("TPU", tpu, ("--node", "TPUv5e"))):
        message = read_hlo_module(text.encode(), name="step.hlo").message
        alone = message.SerializeToString()
        wrapped = message_class("xla.HloProto")(hlo_module=message).SerializeToString()
        command = "run" if name == "GPU" else "estimate"
        files: dict[str, tuple[str | bytes, Form]] = {
            "text": (text, Form.TEXT),
            "proto": (wrapped, Form.PROTO),
            "module proto": (alone, Form.PROTO),
        }
        for label, (content, form) in files.items():
            directory = at(home, f"hlo {name} {label}", {"step.hlo": content})
            for words in ((command, "step.hlo", *node), ("memory", "step.hlo", *node[:2])):
                yield Reader(
                    name=f"HLO, {label}",
                    directory=directory,
                    file="step.hlo",
                    form=form,
                    words=words,
                    shows_cuts=form is Form.TEXT,
                )
    launches = tuple(
        KernelLaunch(
            instruction=f"f.{at}",
            kernel="negated",
            grid=(16384, 1, 1),
            block=(128, 1, 1),
            shared_memory_bytes=0,
        )
        for at in (1, 2)
    )
    kernels = encode_kernels(CompiledKernels(launches=launches, ptx={"negated": PTX}))
    directory = at(home, "kernels", {"step.hlo": HLO, "kernels.json": kernels})
    words = ("step.hlo", "--kernels", "kernels.json")
    for command in (("kernels", *words, *NODE), ("run", *words, *SYSTEM, "--method", "kernel")):
        yield Reader(
            name="kernels (JSON with PTX)",
            directory=directory,
            file="kernels.json",
            form=Form.JSON,
            words=command,
        )

    shutil.copytree(PRESETS_DIRECTORY / "nodes" / "A100_SXM_40GB", directory / "node")
    yield Reader(
        name="nodes",
        directory=directory,
        file="node/microarchitecture.json",
        form=Form.JSON,
        words=("kernels", *words, "--node", "./node"),
    )


def _traces(home: Path) -> Iterator[Reader]:
    directory = at(
        home,
        "traces",
        {"step.mlir": LOOPS, "traces.yml": "programs:\n  - {traces: t/dev, devices: 0-3}\n"},
    )
    with chdir(directory):
        hespas("trace", "step.mlir", *NODE, "-o", "t")
    simulate = ("simulate", "t", *SYSTEM[2:])
    for engine in (("--model", "astra-sim"), ("--model", "hespas"), ("--stream",)):
        for file, form in (("t/dev.0.et", Form.DELIMITED_PROTOS), ("t/comm_group.json", Form.JSON)):
            # A stream of messages that ends between two of them is a shorter stream.
            name = "Chakra traces" if form is not Form.JSON else "Chakra groups (JSON)"
            yield Reader(
                name=name,
                directory=directory,
                file=file,
                form=form,
                words=(*simulate, *engine),
                shows_cuts=form is Form.JSON,
            )


def _algorithms(home: Path) -> Iterator[Reader]:
    directory = at(home, "algorithms", {"swap.xml": SWAP})
    with chdir(directory):
        hespas("algorithm", "ring", "--ranks", "4", "--chakra", "c")
    yield Reader(
        name="MSCCL algorithms (XML)",
        directory=directory,
        file="swap.xml",
        form=Form.TEXT,
        words=("algorithm", "swap.xml"),
    )
    graph = min(path.name for path in (directory / "c").glob("*.0.et"))
    yield Reader(
        name="Chakra algorithms",
        directory=directory,
        file=f"c/{graph}",
        form=Form.DELIMITED_PROTOS,
        words=(
            "algorithm",
            f"c/{graph.removesuffix('.0.et')}",
            "--ranks",
            "4",
            "--collective",
            "all-reduce",
        ),
        shows_cuts=False,
    )


def _descriptions(home: Path) -> Iterator[Reader]:
    directory = at(
        home,
        "descriptions",
        {
            "step.mlir": LOOPS,
            "c.json": json.dumps(CONFIGURATION, indent=1),
            "cluster.yml": CLUSTER,
        },
    )
    presets = PRESETS_DIRECTORY
    shutil.copytree(presets / "systems" / "A100_SXM_40GB_4GPU", directory / "system")
    shutil.copytree(presets / "nodes" / "A100_SXM_40GB", directory / "node")
    shutil.copy(
        presets / "links" / "NVLink3_A100.json", directory / "system" / "hespas" / "link.json"
    )
    network = directory / "system" / "hespas" / "network.json"
    network.write_text(network.read_text().replace('"NVLink3_A100"', '"link.json"'))
    step = ("run", "step.mlir", "--as-exported")
    own = (*step, *NODE, "--system", "./system")
    flow, astra = (*own, "--model", "hespas"), (*own, "--model", "astra-sim")
    node = (*step, "--node", "./node", "--system", "A100_SXM_40GB_4GPU")
    measured = ("run", "node/measured/config.json", "--mlir-file", *step[1:], *SYSTEM[2:])
    imperfect = (*step, *SYSTEM, "--imperfect", "cluster.yml")
    yield from (
        # A mapping of YAML ends anywhere between two lines.
        Reader(
            name=name,
            directory=directory,
            file=file,
            form=form,
            words=words,
            shows_cuts=form is Form.JSON,
        )
        for name, file, form, words in (
            ("configurations", "c.json", Form.JSON, ("estimate", "c.json")),
            (
                "configurations",
                "c.json",
                Form.JSON,
                ("run", "c.json", "--system", "V100_32GB_4GPU"),
            ),
            ("systems of ASTRA-sim", "system/astra-sim/system.json", Form.JSON, astra),
            ("systems of ASTRA-sim", "system/astra-sim/remote_memory.json", Form.JSON, astra),
            ("networks (YAML)", "system/astra-sim/network.yml", Form.TEXT, astra),
            ("networks (JSON)", "system/hespas/network.json", Form.JSON, flow),
            ("links", "system/hespas/link.json", Form.JSON, flow),
            ("imperfect clusters", "cluster.yml", Form.TEXT, (*imperfect, "--model", "hespas")),
            ("imperfect clusters", "cluster.yml", Form.TEXT, (*imperfect, "--model", "astra-sim")),
            ("nodes", "node/roofline/config.json", Form.JSON, node),
            ("nodes", "node/node.json", Form.JSON, node),
            ("configurations", "node/measured/config.json", Form.JSON, measured),
        )
    )


def _machines(home: Path) -> Iterator[Reader]:
    files: dict[str, tuple[str, str, Form, dict[str, object]]] = {
        "NCCL": (MACHINE, "machine.xml", Form.TEXT, {"nvlink_bandwidth_bytes_per_s": 25e9}),
        "hwloc": (BRIDGES, "machine.xml", Form.TEXT, {}),
        "infragraph": (json.dumps(INFRAGRAPH, indent=1), "machine.json", Form.JSON, {}),
        "infragraph as YAML": (yaml.safe_dump(INFRAGRAPH), "machine.yml", Form.TEXT, {}),
    }
    for writer, (text, name, form, figures) in files.items():
        machine = {"file": name, "link_latency_s": 1e-6, **figures}
        directory = at(
            home,
            f"machine-{writer}",
            {
                "step.mlir": LOOPS,
                f"system/hespas/{name}": text,
                "system/hespas/network.json": json.dumps({"machine": machine}),
            },
        )
        yield Reader(
            name=f"machines ({'infragraph' if 'infragraph' in writer else 'XML'})",
            directory=directory,
            file=f"system/hespas/{name}",
            form=form,
            words=("run", "step.mlir", "--as-exported", *NODE, "--system", "./system"),
            shows_cuts=form is not Form.TEXT or name.endswith("xml"),
        )


def _measurements(home: Path) -> Iterator[Reader]:
    events = [
        {
            "ph": "X",
            "name": f"{name}_kernel",
            "dur": took,
            "args": {"hlo_op": name, "hlo_module": "step"},
        }
        for name, took in (("d", 300.0), ("f.1", 40.0), ("f.2", 40.0))
    ]
    directory = at(
        home,
        "measurements",
        {
            "gemm.csv": GEMM,
            "nccl.txt": NCCL,
            "step.hlo": HLO,
            "steps.csv": STEPS,
            "whole.csv": "workload,seconds\nstep.hlo,0.01\n",
            "host.trace.json.gz": gzip.compress(
                json.dumps({"traceEvents": events}).encode(), mtime=0
            ),
        },
    )
    fit = ("calibrate", *NODE, "-o", "out")
    link = ("--link", "NVLink3_A100")
    yield from (
        Reader(name=name, directory=directory, file=file, form=form, words=words, shows_cuts=False)
        for name, file, form, words in (
            ("times of products (CSV)", "gemm.csv", Form.TEXT, (*fit, "--gemm", "gemm.csv")),
            ("nccl-tests", "nccl.txt", Form.TEXT, (*fit, *link, "--nccl", "nccl.txt")),
            (
                "measured steps (CSV)",
                "steps.csv",
                Form.TEXT,
                ("validate", "steps.csv", "--json", "out.json"),
            ),
            (
                "measured steps (CSV)",
                "whole.csv",
                Form.TEXT,
                (*fit, "--system", SYSTEM[3], "--steps", "whole.csv"),
            ),
        )
    )
    yield Reader(
        name="profiles (JSON in gzip)",
        directory=directory,
        file="host.trace.json.gz",
        form=Form.ZIPPED_JSON,
        words=(*fit, "--profile", "host.trace.json.gz", "--program", "step.hlo"),
        is_slow=True,
    )
    directory = at(home, "results", {"step.mlir": LOOPS})
    with chdir(directory):
        for name, node in (("a", "A100_SXM_40GB"), ("b", "H100_80GB")):
            hespas(
                "run",
                "step.mlir",
                "--node",
                node,
                "--system",
                SYSTEM[3],
                "--as-exported",
                "--json",
                f"{name}.json",
            )
    yield Reader(
        name="results of runs (JSON)",
        directory=directory,
        file="b.json",
        form=Form.JSON,
        words=("compare", "a.json", "b.json"),
    )


def _caches(home: Path) -> Iterator[Reader]:
    directory = at(home, "caches", {"step.mlir": SHARDED})
    words = ("run", "step.mlir", *EXPORTED, "--cache-dir", "kept")
    with chdir(directory):
        hespas(*words)
    for path in sorted((directory / "kept").rglob("*")):
        if path.is_file():
            yield Reader(
                name="caches",
                directory=directory,
                file=str(path.relative_to(directory)),
                form=Form.BINARY,
                words=words,
                shows_cuts=False,
                is_kept=True,
                is_slow=path.suffix == ".partitioned",
            )


_KINDS = (
    _programs,
    _compiled,
    _traces,
    _algorithms,
    _machines,
    _descriptions,
    _measurements,
    _caches,
    options,
    kernels_of_authors,
    _models,
)
