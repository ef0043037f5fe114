from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.backends.htsim import switch_of
from hespas.backends.network_program import check_plays_messages, dimensions_text
from hespas.backends.sst import network_text
from hespas.errors import SimulationError
from hespas.hardware.presets import load_system

PAGE = Path("docs/how-to/other-simulators.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Which systems fit")[2].partition("##")[0]
SWITCHES = re.findall(r"`([A-Z0-9a-z]+_\w+GPU)`", SECTION)
SLICES = ["TPUv3_2", "TPUv4_2x2x1", "TPUv5e_4x4", "TPUv5p_2x2x2", "TPUv6e_16x16"]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_fits_both(name: str) -> None:
    system = load_system(name)
    (dimension,) = [each for each in system.dimensions if each.size > 1]
    assert "topoSingle" in network_text(system)
    switch = switch_of(system)
    assert switch.bytes_per_s == pytest.approx(dimension.bandwidth_bytes_per_s, rel=1e-3)
    assert not switch.notes


@pytest.mark.parametrize("name", SLICES)
def test_a_torus_fits_sst_alone(name: str) -> None:
    assert name.partition("_")[0] in SECTION
    assert "topoTorus" in network_text(load_system(name))
    with pytest.raises(SimulationError, match="or for one dimension of leaves and spines"):
        switch_of(load_system(name))


def test_a_refusal_says_what_the_system_is() -> None:
    assert dimensions_text(load_system("H100_80GB_8GPU_4")) == "8 Switch x 4 Switch"


def test_what_of_a_system_no_message_says_is_refused_or_noted() -> None:
    system = load_system("H100_80GB_8GPU")
    note = check_plays_messages(system)
    assert "delays of endpoints" in note
    for name in ("replay-only", "per-node-custom-implementation"):
        changed = replace(system, options={**system.options, name: "x"})
        with pytest.raises(SimulationError, match=f"{name} is set"):
            check_plays_messages(changed)
