from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import asdict

from hespas import predict
from hespas.errors import ConfigError, HardwareError, HespasError
from hespas.hardware.device import read_roofline
from hespas.hardware.presets import (
    PRESETS_DIRECTORY,
    device_names,
    load_device,
    load_system,
    node_info,
    resolve_path,
)
from hespas.prediction.configuration import read_configuration
from hespas.report.hardware import preset_details

REPOSITORY = Path(__file__).resolve().parents[3]
TARGETS = PRESETS_DIRECTORY / "targets"
NODES = (
    "A100_PCIe_40GB",
    "A100_PCIe_80GB",
    "A100_SXM_40GB",
    "A100_SXM_80GB",
    "A10G_24GB",
    "A10_24GB",
    "A30_24GB",
    "A40_48GB",
    "A800_SXM_80GB",
    "B200_180GB",
    "B300_288GB",
    "GB200_186GB",
    "GB300_288GB",
    "GH200_144GB",
    "GH200_96GB",
    "H100_80GB",
    "H100_96GB",
    "H100_NVL_94GB",
    "H100_PCIe_80GB",
    "H200_141GB",
    "H200_NVL_141GB",
    "H20_96GB",
    "H800_80GB",
    "L40S_48GB",
    "L4_24GB",
    "MI300X",
    "MI325X",
    "MI355X",
    "RTX3090_24GB",
    "RTX4090_24GB",
    "RTX5090_32GB",
    "RTX6000Ada_48GB",
    "RTXA6000_48GB",
    "RTXPRO6000_96GB",
    "T4_16GB",
    "TPUv3",
    "TPUv4",
    "TPUv5e",
    "TPUv5p",
    "TPUv6e",
    "TPUv7x",
    "V100_32GB",
)
NVIDIA_WITH_RATES = ("A100_PCIe_40GB", "A100_SXM_40GB", "A100_SXM_80GB", "B200_180GB", "H100_80GB")
# XLA names element types by the numbers of its PrimitiveType; its F32 in a matrix unit is tf32.
PRIMITIVE_TYPES = {
    "i8": 2,
    "f16": 10,
    "tf32": 11,
    "f64": 12,
    "bf16": 16,
    "f8E5M2": 19,
    "f8E4M3FN": 20,
    "f4E2M1FN": 32,
}


def test_the_documented_nodes_and_those_of_measured_tables_are_there() -> None:
    assert device_names() == NODES


def test_the_tutorial_s_device() -> None:
    device = load_device("A100_SXM_40GB")
    assert device.name == "A100_SXM_40GB"
    assert device.peak_flops == 9.7e12
    assert device.memory_bandwidth_bytes_per_s == 1555e9
    assert device.per_datatype_flops == {
        "f64": 19.5e12,
        "f32": 19.5e12,
        "tf32": 156e12,
        "bf16": 312e12,
        "f16": 312e12,
        "i8": 624e12,
    }
    assert device.memory_capacity_bytes == 40 * 2**30
    assert device.tdp_w == 400.0


def test_peaks_are_dense() -> None:
    assert load_device("B200_180GB").per_datatype_flops["bf16"] == 2250e12
    assert load_device("H100_80GB").per_datatype_flops["f8E4M3FN"] == 1979e12


def test_a_v100_has_no_rate_for_types_its_tensor_cores_lack() -> None:
    device = load_device("V100_32GB")
    assert set(device.per_datatype_flops) == {"f64", "f32", "f16"}
    assert any("priced at peak_flops" in note for note in node_info("V100_32GB").notes)


def test_a_b300_has_what_nvidia_smi_reports() -> None:
    assert load_device("B300_288GB").memory_capacity_bytes == 275040 * 2**20
    assert load_device("GB300_288GB").memory_capacity_bytes == 284208 * 2**20


def test_a_second_name_is_the_same_device() -> None:
    assert load_device("H100_SXM_80GB") == load_device("H100_80GB")
    assert node_info("H100_80GB").aliases == ("H100_SXM_80GB",)


def test_launches_cost_on_devices_that_launch_kernels() -> None:
    assert load_device("H100_80GB").launch_overhead_s == 3e-6
    assert load_device("TPUv3").launch_overhead_s == 0
    assert all(load_device(name).launch_overhead_s is not None for name in NODES)


@pytest.mark.parametrize("name", NODES)
def test_every_figure_has_its_source(name: str) -> None:
    file = PRESETS_DIRECTORY / "nodes" / name / "roofline" / "config.json"
    hardware = read_roofline(file)
    figures = {"peak_flops", "memory_bandwidth", "memory_capacity_bytes", "target"}
    figures.add("launch_overhead_s")
    figures |= set() if hardware.tdp_w is None else {"tdp_W"}
    figures |= {f"per_datatype_flops.{key}" for key in hardware.per_datatype_flops}
    info = node_info(name)
    figures |= set() if info.tables is None else {"tables"}
    figures |= set() if info.clock_hz is None else {"clock_hz"}
    figures |= set() if info.compute_capability is None else {"compute_capability"}
    figures |= set() if info.host_bandwidth is None else {"host_bandwidth"}
    figures |= {f"calibration.{key}" for key in info.calibration}
    figures |= {f"reached.{key}" for key in info.reached}
    figures |= {"attention_kernels"} if info.attention_kernels else set()
    core = info.tensor_core
    figures |= set() if core is None else {f"tensor_core.{key}" for key in asdict(core)}
    links = {} if info.slice is None else asdict(info.slice)
    figures |= {f"slice.{key}" for key, value in links.items() if value is not None}
    assert set(info.sources) == figures
    named = ("datasheet", "specifications", "documentation", "CACM", "ISCA", "assumed: ")
    named += ("Scale Your Model", "JAX", "libtpu", "SemiAnalysis", "arXiv", "whitepaper")
    for key in figures - {"target", "tables"}:
        assert any(word in info.sources[key] for word in named), key


# In units of 128 x 128 multiply-adds: one of 256 x 256, as from v6e on, is four.
@pytest.mark.parametrize(
    ("name", "units"),
    [("TPUv3", 2), ("TPUv4", 8), ("TPUv5e", 4), ("TPUv5p", 8), ("TPUv6e", 16), ("TPUv7x", 16)],
)
def test_a_tpu_s_matrix_units_reach_its_peak_at_its_clock(name: str, units: int) -> None:
    device = load_device(name)
    assert device.clock_hz is not None
    flops_per_cycle = device.per_datatype_flops["bf16"] / device.clock_hz
    assert flops_per_cycle == pytest.approx(2 * units * 128 * 128, rel=0.003)


@pytest.mark.parametrize("name", NODES)
def test_a_preset_runs_on_any_number_of_devices(name: str) -> None:
    file = PRESETS_DIRECTORY / "nodes" / name / "roofline" / "config.json"
    assert read_roofline(file).num_npus is None


@pytest.mark.parametrize("method", ["xla", "iree"])
def test_the_profiling_presets_are_the_documented_ones(method: str) -> None:
    file = PRESETS_DIRECTORY / "nodes" / "profiling" / method / "config.json"
    assert read_configuration(file).values["method"] == method


def test_the_presets_lie_where_the_documents_say() -> None:
    assert (REPOSITORY / "configs").resolve() == PRESETS_DIRECTORY.resolve()
    assert (REPOSITORY / "configs/nodes/A100_SXM_80GB/roofline/config.json").is_file()


def _target_text(name: str) -> str:
    target = node_info(name).target
    if target is None or name.startswith("TPU"):
        pytest.skip("no description of a GPU")
    return (TARGETS / f"{target}.txtpb").read_text()


# XLA's description of the A100 PCIe 80 GB gives 79.05e9 bytes, less than either reading, that of
# the B300 what a GB300 has.
@pytest.mark.parametrize("name", [n for n in NODES if n not in {"A100_PCIe_80GB", "B300_288GB"}])
def test_memory_is_what_programs_get(name: str) -> None:
    found = re.search(r"device_memory_size: (\d+)", _target_text(name))
    assert found is not None
    # The target of the V100 is the part with half the memory.
    usable = int(found[1]) * (2 if name == "V100_32GB" else 1)
    capacity = node_info(name).memory_capacity_bytes
    assert 0.98 * capacity < usable <= capacity


@pytest.mark.parametrize("name", [*NVIDIA_WITH_RATES, "H200_141GB"])
def test_peaks_agree_with_xla_s_description_of_the_part(name: str) -> None:
    text = _target_text(name)
    cores = re.search(r"core_count: (\d+)", text)
    matrix_unit = re.search(r"matrix_unit_description \{(.*?)\n  \}", text, re.DOTALL)
    assert cores is not None
    assert matrix_unit is not None
    rate = r"clock_rate_ghz: (\S+)\s+units_per_core: (\d+)\s+ops_per_clock: (\d+)"
    form = rf"key: (\d+)\s+value \{{\s+{rate}"
    peaks = {
        int(key): 2 * float(ghz) * 1e9 * int(units) * int(ops) * int(cores[1])
        for key, ghz, units, ops in re.findall(form, matrix_unit[1])
    }
    device = load_device(name)
    for element, number in PRIMITIVE_TYPES.items():
        if element in device.per_datatype_flops:
            assert device.per_datatype_flops[element] == pytest.approx(peaks[number], rel=0.015)


def test_a_device_can_be_given_by_its_path() -> None:
    home = PRESETS_DIRECTORY / "nodes" / "A40_48GB"
    expected = load_device("A40_48GB")
    assert load_device(home) == expected
    assert load_device(str(home)) == expected
    assert load_device(home / "roofline") == expected
    assert load_device(home / "roofline" / "config.json") == expected


def _own(directory: Path, name: str = "mine.json", **more: object) -> Path:
    hardware = {"peak_flops": 1e12, "memory_bandwidth": 1e11}
    estimator = {"method": "roofline", "hardware": hardware}
    path = directory / name
    path.write_text(json.dumps({"perf_estimator": estimator} | more))
    return path


def test_one_s_own_file_is_named_after_itself(tmp_path: Path) -> None:
    device = load_device(_own(tmp_path, mlir_file="a.mlir"))
    assert device.name == "mine"
    assert device.memory_capacity_bytes is None
    assert device.tdp_w is None


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("memory_bandwidth", "put it into perf_estimator.hardware"),
        ("tdp_W", "put it into perf_estimator.hardware"),
        ("memory_capacity_bytes", "put it into node.json in the same directory"),
        ("fidelity", "take it out"),
        ("perf_estimater", "take it out"),
    ],
)
def test_a_key_that_describes_no_node_is_refused(tmp_path: Path, key: str, hint: str) -> None:
    file = _own(tmp_path, "config.json", **{key: 1e12})
    (tmp_path / "node.json").write_text(
        '{"full_name": "Mine", "memory_capacity_bytes": 1073741824}'
    )
    with pytest.raises(ConfigError) as caught:
        predict("examples/attention_block.mlir", tmp_path, "H100_80GB_4GPU")
    assert str(caught.value).startswith(f"{file}: $.{key} describes no node; {hint}")
    with pytest.raises(ConfigError, match="describes no node"):
        preset_details(str(tmp_path))


def test_one_s_own_directory_gives_name_and_memory(tmp_path: Path) -> None:
    _own(tmp_path, "config.json")
    (tmp_path / "node.json").write_text(
        '{"full_name": "Mine", "memory_capacity_bytes": 1073741824}'
    )
    device = load_device(tmp_path)
    assert device.name == tmp_path.name
    assert device.memory_capacity_bytes == 2**30


def test_a_file_in_the_current_directory_needs_no_slash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_device("mine.json").peak_flops == 1e12


def test_a_preset_wins_over_a_directory_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "TPUv3").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_device("TPUv3").name == "TPUv3"


@pytest.mark.parametrize(
    ("name", "near"), [("H10_80GB", "H100_80GB"), ("a100_sxm_40gb", "A100_SXM_40GB")]
)
def test_an_unknown_device_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(HardwareError) as caught:
        load_device(name)
    assert str(caught.value).startswith(
        f"no device preset or file is named '{name}'; did you mean '{near}'"
    )
    with pytest.raises(HardwareError, match=near):
        node_info(name)


def test_profiling_is_no_device() -> None:
    with pytest.raises(HardwareError, match="'profiling'"):
        load_device("profiling")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read"):
        load_device(str(tmp_path / "none.json"))


def test_a_file_of_another_method_is_no_device() -> None:
    with pytest.raises(ConfigError, match="method 'iree' describes no device"):
        load_device(PRESETS_DIRECTORY / "nodes" / "profiling" / "iree" / "config.json")


@pytest.mark.parametrize(
    ("node", "complaint"),
    [
        ("{}", "$ lacks 'full_name'; add it"),
        ('{"full_name": "x", "memory_capacity_bytes": 0}', "is 0; give an integer >= 1"),
        ('{"full_name": "x", "memory_capacity_bytes": 80}', "80 bytes; give 85899345920 for 80 GB"),
        (
            '{"full_name": "x", "memory_capacity_bytes": 85899345920, "launch_overhead_s": 3}',
            "launch_overhead_s is 3 s; give 3e-9 for 3 ns, 3e-6 for 3 us",
        ),
        ('{"full_name": "x", "memory_capacity_bytes": 1e9}', "is 1000000000.0; give an integer"),
        (
            '{"full_name": "x", "memory_capacity_bytes": 85899345920, "target": 3}',
            "is 3; give a string",
        ),
        (
            '{"full_name": "x", "memory_capacity_bytes": 85899345920, "source": {}}',
            "unknown key 'source' in $; did you mean 'sources'?",
        ),
        (
            '{"full_name": "x", "memory_capacity_bytes": 85899345920, "sources": {"tdp_W": ""}}',
            '$.sources.tdp_W is ""; give a string of length >= 1',
        ),
    ],
)
def test_a_wrong_node_file_is_refused(tmp_path: Path, node: str, complaint: str) -> None:
    _own(tmp_path, "config.json")
    (tmp_path / "node.json").write_text(node)
    with pytest.raises(ConfigError) as caught:
        load_device(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'node.json'}: ")
    assert str(caught.value).endswith(complaint)


@pytest.mark.parametrize("clock_hz", [1e3, 940, 1.7e12])
def test_a_clock_in_another_unit_is_refused(tmp_path: Path, clock_hz: float) -> None:
    _own(tmp_path, "config.json")
    file = tmp_path / "node.json"
    node = {"full_name": "Mine", "memory_capacity_bytes": 2**30, "clock_hz": clock_hz}
    file.write_text(json.dumps(node))
    for read in (load_device, node_info):
        with pytest.raises(HardwareError, match=r"node\.json: clock_hz is .*; give it in Hz, .*"):
            read(tmp_path)


@pytest.mark.parametrize("name", ["node.json", "microarchitecture.json"])
def test_a_directory_in_a_files_place_is_refused(tmp_path: Path, name: str) -> None:
    _own(tmp_path, "config.json")
    (tmp_path / name).mkdir()
    with pytest.raises(HespasError, match=rf"{name}: .*directory"):
        load_device(tmp_path)


def test_a_node_without_rates_names_both_files_that_may_hold_them(tmp_path: Path) -> None:
    with pytest.raises(HardwareError) as caught:
        load_device(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: ")
    assert "neither roofline/config.json nor config.json" in str(caught.value)


def test_importing_the_presets_leaves_yaml_alone() -> None:
    code = "import hespas.hardware.presets, sys; print({'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_documented_paths_lead_to_presets_where_there_is_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documented = Path("configs/nodes/H100_80GB/roofline/config.json")
    monkeypatch.chdir(tmp_path)
    assert load_device(documented) == load_device("H100_80GB")
    assert load_device(str(documented.parent.parent)) == load_device("H100_80GB")
    assert load_system("configs/systems/H100_80GB_4GPU").device_count == 4
    assert resolve_path(Path("configs/nodes/H100_80GB/no.json")) == Path(
        "configs/nodes/H100_80GB/no.json"
    )
    documented.parent.mkdir(parents=True)
    documented.write_text("{}")
    assert resolve_path(documented) == documented


def test_paths_in_messages_lead_to_presets() -> None:
    source = PRESETS_DIRECTORY.parent
    texts = [path.read_text() for path in source.rglob("*.py")]
    form = r"\bconfigs/(?:nodes|systems)/[\w/]+(?:\.json)?"
    named = {name for text in texts for name in re.findall(form, text)}
    plain = {name for name in named if not re.search("NODE|SYSTEM", name)}
    assert plain
    for name in plain:
        assert resolve_path(Path(name)).exists(), name


def test_a_bandwidth_to_the_host_in_another_unit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(
        '{"full_name": "x", "memory_capacity_bytes": 85899345920, "host_bandwidth": 64}'
    )
    rates = {"peak_flops": 1e12, "memory_bandwidth": 1e12}
    content = {"perf_estimator": {"method": "roofline", "hardware": rates}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"host_bandwidth is 64 B/s; give 64e9 for 64 GB/s"):
        load_device(tmp_path / "config.json")
