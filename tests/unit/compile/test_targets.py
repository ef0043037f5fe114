from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from hespas.compile.targets import GpuTarget, TpuTarget, find_target, target_names
from hespas.errors import HardwareError
from hespas.hardware.presets import PRESETS_DIRECTORY, device_names, load_device, node_info


def figure(target: GpuTarget, field: str) -> float:
    found = re.search(rf"^  {field}: ([\d.]+)$", target.description, re.MULTILINE)
    assert found is not None
    return float(found[1])


def gpu(name: str) -> GpuTarget:
    found = find_target(name)
    assert isinstance(found, GpuTarget)
    return found


def node_with(directory: Path, **more: object) -> Path:
    """Return the directory of a node of one's own."""
    home = Path(shutil.copytree(PRESETS_DIRECTORY / "nodes" / "H100_80GB", directory / "mine"))
    node = {"full_name": "Mine", "memory_capacity_bytes": 80 * 2**30}
    (home / "node.json").write_text(json.dumps(node | more))
    return home


def test_every_target_is_found_in_any_letters() -> None:
    for name in target_names():
        assert find_target(name).name == name
        assert find_target(name.lower()).name == name


@pytest.mark.parametrize(
    ("name", "cores", "capability"),
    [
        ("A100_SXM_40", 108, "major: 8"),
        ("H100_SXM", 132, "major: 9"),
        ("H100_PCIE", 114, "major: 9"),
        ("H200", 132, "major: 9"),
        ("B200", 148, "major: 10"),
    ],
)
def test_descriptions_are_of_their_parts(name: str, cores: int, capability: str) -> None:
    target = gpu(name)
    assert figure(target, "core_count") == cores
    assert f"cuda_compute_capability {{ {capability}" in target.description


def test_every_node_preset_with_a_target_has_its_own_memory() -> None:
    targets = {name: node_info(name).target for name in device_names()}
    named = [name for name, target in targets.items() if target and not target.startswith("tpu")]
    assert len(named) > 6
    for name in named:
        device = load_device(name)
        target = gpu(name)
        bandwidth = device.memory_bandwidth_bytes_per_s
        assert figure(target, "memory_bandwidth") == pytest.approx(bandwidth, rel=0.051)
        assert device.memory_capacity_bytes is not None
        capacity = figure(target, "device_memory_size")
        assert capacity == pytest.approx(device.memory_capacity_bytes, rel=0.051)


def test_another_parts_memory_is_reported() -> None:
    assert gpu("H100_SXM_80GB").notes == ()
    target = gpu("V100_32GB")
    assert len(target.notes) == 1
    assert "V100_32GB's device_memory_size, 34359738368" in target.notes[0]


def test_tpus_have_generations() -> None:
    assert find_target("tpuv6E") == TpuTarget(name="TPUv6e", generation="v6e")
    assert find_target("TPUv3") == TpuTarget(name="TPUv3", generation="v3")


def test_every_preset_of_a_tpu_is_a_target() -> None:
    named = [name for name in device_names() if name.startswith("TPU")]
    assert len(named) == 6
    for name in named:
        assert node_info(name).target == name.lower()
        assert isinstance(find_target(name), TpuTarget)


def test_the_description_of_a_dump_is_a_target(tmp_path: Path) -> None:
    file = tmp_path / "module_0014.gpu_target_config.pbtxt"
    file.write_text(gpu("H100_SXM").description)
    target = gpu(str(file))
    assert (target.name, target.description) == (file.name, gpu("H100_SXM").description)
    file.write_text("nothing of the kind")
    with pytest.raises(HardwareError, match=r"pbtxt: is no description of a GPU"):
        find_target(str(file))


@pytest.mark.parametrize(
    ("target", "found"),
    [("H100_SXM", "mine"), ("h100_sxm", "mine"), ("TPUv5e", "TPUv5e"), ("tpuv5e", "TPUv5e")],
)
def test_a_node_of_ones_own_names_a_target_in_any_letters(
    tmp_path: Path, target: str, found: str
) -> None:
    assert find_target(str(node_with(tmp_path, target=target))).name == found


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("nope", "known: A100_PCIE_80, "),
        ("h100_sx", "did you mean 'H100_SXM'"),
        ("../LIC", "known"),
    ],
)
def test_an_unknown_target_of_a_node_is_reported_with_its_file(
    tmp_path: Path, target: str, hint: str
) -> None:
    home = node_with(tmp_path, target=target)
    with pytest.raises(HardwareError) as caught:
        find_target(str(home))
    shown = f"{home / 'node.json'}: no target is named {target!r}; {hint}"
    assert str(caught.value).startswith(shown)


def test_a_node_without_a_target_is_reported_where_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(
        HardwareError, match=r"description of Mine; name .* as target in a node\.json"
    ):
        find_target(str(node_with(tmp_path)))


def test_unknown_targets_are_suggested() -> None:
    with pytest.raises(HardwareError, match="did you mean 'H100_SXM'"):
        find_target("h100_sx")
    with pytest.raises(HardwareError, match=r"MI300X.*for another part.*targets: A100_PCIE_80"):
        find_target("MI300X")
    with pytest.raises(HardwareError, match=r"no target is named '\.\./LICENSE'"):
        find_target("../LICENSE")
