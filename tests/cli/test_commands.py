"""The documented command lines, their files and what they print."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hespas.tasks.chakra.reader import read_traces
from hespas.xla.mlir.module import parse_mlir

Call = Callable[..., CompletedProcess[str]]
ESTIMATOR_TIME = (
    r"Total estimator time taken vs cached time: [\d.e-]+ s vs total time \(without caching\): "
    r"[\d.e-]+ s \([\d.]+ % reduction\)"
)
PRESETS = ("--node", "A100_SXM_40GB", "--system", "A100_SXM_40GB_4GPU")


def preset(root: Path, node: str = "A100_SXM_40GB") -> Path:
    return root / "configs" / "nodes" / node / "roofline" / "config.json"


def test_the_tutorial_works_as_written(call: Call, root: Path, llama: Path) -> None:
    done = call(
        "hespas_chakra_gen", preset(root), "--mlir_file", llama, "--output", "output/roofline",
        "--split_fn", "individual_split", "--merge", "--num_npus", "4", "--log-level", "error",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    forms = [
        r"Cache hits: \d+",
        r"Basic block reuse rate: 0\.\d{3} \(\d+/\d+\)",
        r"Operator reuse factor: 0\.\d{3} \(\d+/\d+\)",
        ESTIMATOR_TIME,
        r"FLOPS/s utilisation: 0\.\d{3}",
        r"Memory bandwidth utilisation: 0\.\d{3}",
        r"Average FLOPS/s: \d+\.\d{3} TFLOPS/s",
        r"Average Memory Bandwidth: \d\.\d{3} TB/s",
        r"Compute Runtime Estimation: \d+\.\d{3} us",
        r"Energy: .* J",
        r"Op time proportions:",
        r"    stablehlo\.\w+: 0\.\d{3}",
    ]
    lines = done.stdout.splitlines()
    for form, line in zip(forms, lines, strict=False):
        assert re.fullmatch(form, line), line
    made = {path.name for path in Path("output/roofline").iterdir()}
    assert {"dev.0.et", "dev.1.et", "dev.2.et", "dev.3.et"} <= made
    assert {"comm_group.json", "module_stats.json", "dependency_graph.dot"} <= made
    assert "private_functions.mlir" in made
    groups = json.loads(Path("output/roofline/comm_group.json").read_text())
    assert groups == {"1": [0, 1, 2, 3]}
    simulated = call("hespas", "simulate", "output/roofline/dev", "--system", "A100_SXM_40GB_4GPU",
                     "--comm-groups", "output/roofline/comm_group.json")  # fmt: skip
    assert simulated.stdout.startswith("Step time: 201.6 ms\n")
    assert "hespas run takes hespas' own" in simulated.stdout


def test_traces_and_their_program_agree_by_the_same_network_model(call: Call, block: Path) -> None:
    words = ("--node", "A100_SXM_40GB", "--system", "A100_SXM_40GB_4GPU")
    assert call("hespas", "trace", block, *words, "-o", "traces").returncode == 0

    def step_s(*command: object) -> float:
        done = call("hespas", *command, "--json", "-")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return found["step_time_s"] if "step_time_s" in found else found["step_time_ns"] / 1e9

    exported = ("run", block, *words, "--as-exported", "--method", "roofline")
    simulated = ("simulate", "traces", *words[2:])
    assert step_s(*exported) == pytest.approx(step_s(*simulated, "--model", "hespas"), rel=1e-6)
    by_astra_sim = step_s(*exported, "--model", "astra-sim")
    assert by_astra_sim == pytest.approx(step_s(*simulated), rel=1e-6)


def test_one_split_and_trace_serves_every_documented_spelling(
    call: Call, root: Path, block: Path
) -> None:
    flags = (
        "--mlir_file", block, "--num_npus", "4", "--split_fn", "linear_split", "--block_lim", "2",
        "--no-merge", "--threads", "2", "--log-level", "info", "--log-path", "log.txt", "--clean",
    )  # fmt: skip
    done = call("hespas_chakra_gen", preset(root), *flags, "--output", "one")
    assert done.returncode == 0, done.stderr
    dashed = [str(flag).replace("_", "-") if str(flag).startswith("--") else flag for flag in flags]
    assert call("hespas_chakra_gen", preset(root), *dashed, "--output", "two").returncode == 0
    assert Path("one/dev.0.et").read_bytes() == Path("two/dev.0.et").read_bytes()
    assert "regions" in Path("log.txt").read_text()


def test_the_splitter_reads_a_configuration(call: Call, block: Path) -> None:
    config = {"mlir_file": str(block), "split_strategy": "individual_split", "output_dir": "out"}
    Path("config.json").write_text(json.dumps(config))
    done = call("hespas_mlir_splitter", "config.json", "--print_meta")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "6 compute regions, 1 communication regions, 7 distinct"
    assert lines[0] == "0: 1 dot_general [mini_module_0.mlir] after []"
    assert lines[6] == "6: 1 all_reduce [mini_module_6.mlir] after [5]"


@pytest.mark.parametrize("flag", ["--split_fn", "--split-fn"])
def test_flags_go_before_the_configuration(call: Call, block: Path, flag: str) -> None:
    config = {"mlir_file": str(block), "split_strategy": "individual_split", "output_dir": "out"}
    Path("config.json").write_text(json.dumps(config))
    done = call("hespas_mlir_splitter", "config.json", flag, "linear_split", "--output", "other")
    assert done.stdout == "1 compute regions, 1 communication regions, 2 distinct\n"
    assert not Path("out").exists()
    assert Path("other/mini_module_0.mlir").is_file()


def test_a_split_writes_valid_modules_with_their_descriptions(call: Call, block: Path) -> None:
    done = call("hespas", "split", block, "--split", "individual_split", "-o", "out")
    assert done.returncode == 0, done.stderr
    files = sorted(Path("out").glob("mini_module_*.mlir"))
    assert len(files) == 7
    for file in files:
        parse_mlir(file.read_bytes(), name=file.name)
    first = json.loads(Path("out/mini_module_0.json").read_text())
    assert first == {
        "id": 0,
        "regions": [0],
        "block_type": "NodeType.COMP_NODE",
        "collective": False,
        "module_file": "mini_module_0.mlir",
        "parent_module": "attention_block.mlir",
        "op_count": 1,
        "input_dims": ["tensor<2x1024x128xbf16>", "tensor<2x1024x128xbf16>"],
        "output_dims": ["tensor<2x1024x1024xbf16>"],
    }
    assert not Path("out/mini_module_6.json").exists(), "a collective has no description"
    dot = Path("out/dependency_graph.dot").read_text()
    assert dot.startswith("digraph regions {")
    assert "  5 -> 6;" in dot
    listed = json.loads(Path("out/regions.json").read_text())
    assert [region["producers"] for region in listed["regions"]] == [
        [],
        [0],
        [1],
        [2],
        [3],
        [4],
        [5],
    ]


STATS = {
    "estimation_time", "uncached_time", "runtime", "modules_processed", "operators_processed",
    "flops", "mem_bytes", "flops_util", "mem_bw_util", "avg_flopss", "avg_mem_bw",
    "per_datatype", "per_module",
}  # fmt: skip


def test_module_stats_has_every_documented_field(call: Call, root: Path, llama: Path) -> None:
    words = ("estimate", llama, "--peak-flops", "9.7e12", "--memory-bandwidth", "1555e9",
             "--split_fn", "individual_split", "-o", "out")  # fmt: skip
    assert call("hespas", *words).returncode == 0
    stats = json.loads(Path("out/module_stats.json").read_text())
    reuse = {"cache_hits", "cache_hit_prop", "cache_op_hits", "cache_op_hit_prop"}
    assert stats.keys() == STATS | reuse, "no power is known: no energy"
    assert stats["per_datatype"]["bf16"].keys() == {"flops", "runtime", "flops_util"}
    for name, module in stats["per_module"].items():
        assert Path("out", name).is_file()
        assert {"runtime", "flops", "mem_bytes", "per_datatype", "per_op"} <= module.keys()
        for op in module["per_op"].values():
            assert op.keys() == {"runtime", "count", "flops", "mem_bytes", "per_datatype"}
    whole = sum(module["runtime"] * module["uses"] for module in stats["per_module"].values())
    assert whole == pytest.approx(stats["runtime"], rel=1e-12)
    assert stats["modules_processed"] == sum(m["uses"] for m in stats["per_module"].values())


def test_module_stats_has_energy_where_power_is_known(call: Call, block: Path) -> None:
    call("hespas", "estimate", block, "--node", "A100_SXM_40GB", "-o", "out")
    stats = json.loads(Path("out/module_stats.json").read_text())
    assert stats["total_energy"] == pytest.approx(400 * stats["runtime"])
    assert stats.keys() == STATS | {"total_energy"}, "nothing was reused"


def test_an_estimator_runs_alone_on_a_file(call: Call, block: Path) -> None:
    done = call(
        "hespas", "estimate", "--mlir-file", block, "--peak-flops", "312e12",
        "--memory-bandwidth", "1555GB/s", "--per-datatype-flops", '{"bf16": 312e12}',
        "--num-npus", "4", "--cache-dir", "cache",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Every operation is bound by memory: 23068672 bytes at 1555 GB/s.
    assert "Compute Runtime Estimation: 14.835 us" in done.stdout
    assert Path("cache/estimates.sqlite").is_file()


def test_an_estimator_takes_its_configuration_by_flag(call: Call, root: Path, block: Path) -> None:
    one = call("hespas", "estimate", block, "--config-file", preset(root))
    two = call("hespas", "estimate", block, "--config_file", preset(root, "H100_80GB"))
    assert "Compute Runtime Estimation: 14.835 us" in one.stdout
    assert two.stdout != one.stdout


def test_traces_are_read_back(call: Call, block: Path) -> None:
    done = call("hespas", "trace", block, "--node", "A100_SXM_40GB", "-o", "out")
    assert done.stdout.endswith("Traces of 4 devices: out/dev.*.et\n")
    job = read_traces(Path("out/dev"), Path("out/comm_group.json"))
    assert job.device_count == 4


def test_presets_are_found_by_name_and_by_path(call: Call, root: Path, block: Path) -> None:
    by_name = call("hespas", "run", block, *PRESETS)
    by_path = call(
        "hespas", "run", block, "--node", preset(root),
        "--system", root / "configs" / "systems" / "A100_SXM_40GB_4GPU",
    )  # fmt: skip
    assert by_path.stdout == by_name.stdout
    second_name = call("hespas", "estimate", block, "--node", "H100_SXM_80GB")
    assert second_name.stdout == call("hespas", "estimate", block, "--node", "H100_80GB").stdout


def test_a_configuration_may_hold_everything(call: Call, root: Path, block: Path) -> None:
    hardware = {"peak_flops": 9.7e12, "memory_bandwidth": 1555e9, "num_npus": 4,
                "per_datatype_flops": {"bf16": 312e12}, "in_memory_only_cache": True}  # fmt: skip
    config = {
        "mlir_file": str(block), "split_strategy": "linear_split", "output_dir": "out",
        "block_lim": 3, "num_threads": 2, "merge": False,
        "perf_estimator": {"method": "roofline", "hardware": hardware},
    }  # fmt: skip
    Path("experiment.json").write_text(json.dumps(config))
    done = call("hespas", "run", "experiment.json", "--system", "A100_SXM_40GB_4GPU")
    assert done.returncode == 0, done.stderr
    assert "4 x experiment on A100_SXM_40GB_4GPU" in done.stdout.splitlines()[0]
    assert Path("out/dev.3.et").is_file()
    assert not Path("out/cache").exists(), "the cache is kept in memory"


def test_the_analyzer_counts_as_documented(call: Call, llama: Path) -> None:
    done = call("hespas_mlir_analyzer", llama)
    lines = done.stdout.splitlines()
    assert lines[0] == "stablehlo.multiply............: 1117"
    assert lines[-1] == "5156 operations, 34 unique"
    assert "func.return...................: 1" in lines
    answer = json.loads(call("hespas", "analyze", llama, "--json", "-").stdout)
    assert answer["total"] == 5156 == sum(answer["operators"].values())
    assert answer["unique"] == 34 == len(answer["operators"])
    assert answer["operators"]["stablehlo.all_reduce"] == 272


def test_the_analyzer_prints_tables_and_csv(call: Call, block: Path) -> None:
    rows = list(csv.reader(StringIO(call("hespas_mlir_analyzer", "-f", "csv", block).stdout)))
    assert rows[:2] == [["operator", "count"], ["stablehlo.dot_general", "3"]]
    typed = call("hespas_mlir_analyzer", "-s", block).stdout.splitlines()
    assert any(line.startswith("stablehlo.reshape(tensor<1024x2x128xbf16>)") for line in typed)
    assert len({line.rindex(":") for line in typed[:-1]}) == 1, "figures stand below each other"


def test_the_analyzer_opens_calls_fusions_and_loops(call: Call) -> None:
    Path("p.mlir").write_text(OPENED)
    assert json.loads(call("hespas", "analyze", "p.mlir", "--json", "-").stdout)["operators"] == {
        "func.call": 2, "func.return": 1, "mhlo.fusion": 1, "stablehlo.while": 1,
    }  # fmt: skip
    opened = json.loads(call("hespas", "analyze", "-e", "p.mlir", "--json", "-").stdout)
    assert opened["operators"] == {
        "func.return": 1, "stablehlo.add": 2, "stablehlo.compare": 1, "stablehlo.constant": 1,
        "stablehlo.multiply": 1, "stablehlo.negate": 1, "stablehlo.while": 1,
    }  # fmt: skip


OPENED = """
func.func @main(%a: tensor<f32>) -> tensor<f32> {
  %b = call @twice(%a) : (tensor<f32>) -> tensor<f32>
  %c = call @twice(%b) : (tensor<f32>) -> tensor<f32>
  %d = "mhlo.fusion"(%c) <{fusion_kind = #mhlo<fusion_kind kLoop>}> ({
  ^bb0(%x: tensor<f32>):
    %y = stablehlo.negate %x : tensor<f32>
    mhlo.return %y : tensor<f32>
  }) : (tensor<f32>) -> tensor<f32>
  %r = stablehlo.while(%x = %d) : tensor<f32>
  cond {
    %k = stablehlo.constant dense<1.0e3> : tensor<f32>
    %p = stablehlo.compare LT, %x, %k : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %m = stablehlo.multiply %x, %x : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }
  return %r : tensor<f32>
}
func.func private @twice(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.add %x, %x : tensor<f32>
  return %y : tensor<f32>
}
"""


def test_hardware_lists_nodes_and_systems(call: Call) -> None:
    shown = call("hespas", "hardware").stdout
    assert "  A100_SXM_40GB" in shown
    assert "128 devices: FullyConnected of 4, 100 GiB/s, 1 us; Switch of 32" in shown
    node = call("hespas", "hardware", "A100_SXM_40GB").stdout
    assert "bf16         312 TFLOP/s" in node
    assert "datasheet" in node
    system = call("hespas", "hardware", "A100_SXM_40GB_4GPU_2").stdout
    assert system.startswith("A100_SXM_40GB_4GPU_2: 8 devices\n")


def test_hardware_as_json(call: Call) -> None:
    everything = json.loads(call("hespas", "hardware", "--json", "-").stdout)
    assert everything["nodes"]["A100_SXM_40GB"]["per_datatype_flops"]["bf16"] == 312e12
    assert everything["systems"]["A100_SXM_40GB_4GPU"]["devices"] == 4
    one = json.loads(call("hespas", "hardware", "A100_SXM_40GB_4GPU", "--json", "-").stdout)
    assert one == everything["systems"]["A100_SXM_40GB_4GPU"]


def test_no_command_shows_the_help(call: Call) -> None:
    done = call("hespas")
    assert done.returncode == 0
    for name in ("run", "analyze", "split", "estimate", "trace", "simulate", "hardware"):
        assert f"  {name} " in done.stdout
    assert call("hespas", "--version").stdout.startswith("hespas, version ")
    of_studies = call("hespas", "study")
    assert of_studies.returncode == 0
    assert of_studies.stdout == call("hespas", "study", "--help").stdout


def test_only_documented_commands_and_profilers_print_what_the_estimator_took(
    call: Call, root: Path, block: Path
) -> None:
    flags = ("--mlir_file", block, "--split_fn", "individual_split")
    first = call("hespas_chakra_gen", preset(root), *flags, "--output", "one")
    times = [line for line in first.stdout.splitlines() if re.fullmatch(ESTIMATOR_TIME, line)]
    assert len(times) == 1
    # What the times were, of answers that a cache on disk had, is not known.
    again = call("hespas_chakra_gen", preset(root), *flags, "--output", "one")
    assert "Total estimator time" not in again.stdout
    ours = call("hespas", "trace", preset(root), *flags, "--output", "two")
    assert ours.returncode == 0, ours.stderr
    assert "Total estimator time" not in ours.stdout
    assert "--estimator-times" not in call("hespas_chakra_gen", "--help").stdout


def test_the_first_command_of_help_needs_no_file(call: Call) -> None:
    shown = call("hespas").stdout.splitlines()
    name, *words = shown[shown.index("Start with:") + 1].split()
    done = call(name, *words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Step time +[\d.]+ ms$", done.stdout, re.MULTILINE)
    assert list(Path().iterdir()) == []
