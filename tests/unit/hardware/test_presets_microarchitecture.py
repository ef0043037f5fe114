import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from hespas.errors import ConfigError, HardwareError
from hespas.hardware.microarchitecture import (
    launching_in_graphs,
    load_microarchitecture,
    read_microarchitecture,
)
from hespas.hardware.presets import MICROARCHITECTURE, PRESETS_DIRECTORY

FILES = sorted(PRESETS_DIRECTORY.glob(f"nodes/*/{MICROARCHITECTURE}"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_every_preset_tells_the_source_of_every_figure(file: Path) -> None:
    gpu = load_microarchitecture(file.parent.name)
    assert all(len(source) > 10 for source in gpu.sources.values())
    assert 0.5e9 < gpu.clock_hz < 3e9
    assert gpu.l2_bandwidth_bytes_per_s > 1e12


def test_presets_of_nvidia_gpus_have_it_and_others_say_so() -> None:
    assert len(FILES) >= 13
    with pytest.raises(HardwareError, match="MI300X: the microarchitecture of MI300X is not"):
        load_microarchitecture("MI300X")


def test_a_node_of_ones_own_has_its_own_inside(tmp_path: Path) -> None:
    home = tmp_path / "mine"
    shutil.copytree(PRESETS_DIRECTORY / "nodes" / "H100_80GB", home)
    figures = json.loads((home / MICROARCHITECTURE).read_text())
    (home / MICROARCHITECTURE).write_text(json.dumps(figures | {"multiprocessors": 144}))
    assert load_microarchitecture(home).multiprocessors == 144
    assert load_microarchitecture(str(home / "roofline/config.json")).multiprocessors == 144
    (home / MICROARCHITECTURE).unlink()
    with pytest.raises(
        HardwareError, match=r"microarchitecture of mine is not .*beside its node\.json"
    ):
        load_microarchitecture(home)


def test_a_kernel_may_take_nothing_to_launch(tmp_path: Path) -> None:
    file = tmp_path / MICROARCHITECTURE
    file.write_text(json.dumps(json.loads(FILES[0].read_text()) | {"launch_s": 0}))
    assert read_microarchitecture(file).launch_s == 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"clock_hz": 0}, ConfigError, "clock_hz"),
        ({"clock_hz": 1e3}, HardwareError, "clock_hz is 1000; give it in Hz"),
        ({"clock_hz": 1.7e12}, HardwareError, "clock_hz is .*; give it in Hz"),
        ({"launch_s": -1e-6}, ConfigError, "launch_s"),
        ({"pipe_efficiency": 1.5}, ConfigError, "pipe_efficiency"),
        ({"clok_hz": 1e9}, ConfigError, "clok_hz"),
        ({"sources": {"clock_hz": "a datasheet"}}, HardwareError, "sources and figures differ"),
    ],
)
def test_a_wrong_file_is_refused(
    tmp_path: Path, change: dict[str, object], error: type[Exception], message: str
) -> None:
    figures = json.loads(FILES[0].read_text()) | change
    file = tmp_path / MICROARCHITECTURE
    file.write_text(json.dumps(figures))
    with pytest.raises(error, match=message):
        read_microarchitecture(file)


def test_launches_in_graphs_are_short() -> None:
    gpu = load_microarchitecture("H100_80GB")
    assert launching_in_graphs(gpu).launch_s == gpu.graph_launch_s == 1.5e-6
    alone = replace(gpu, graph_launch_s=None)
    assert launching_in_graphs(alone).launch_s == alone.launch_s
