"""The network model that follows from a system."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.presets import load_device, load_system
from hespas.hardware.sized import find_system
from hespas.hardware.system import LinkBandwidth, bare_system
from hespas.prediction import machines
from hespas.prediction.machines import with_node
from hespas.prediction.options import EstimateOptions, NetworkOptions
from hespas.simulate.options import ContentionModel, Model

SYSTEM = "H100_80GB_4GPU"
BAD_LINK = LinkOverride(link="0->1", bandwidth_scale=0.5)


@pytest.mark.parametrize(
    ("system", "given", "model"),
    [
        (SYSTEM, NetworkOptions(), "hespas"),
        ("24xH100_80GB", NetworkOptions(), "hespas"),
        ("V100_32GB_4GPU", NetworkOptions(), "astra-sim"),
        ("TPUv4_4x4x4", NetworkOptions(), "hespas"),
        ("4x256xTPUv5e", NetworkOptions(), "hespas"),
        ("TPUv3_4_2", NetworkOptions(), "astra-sim"),
        (SYSTEM, NetworkOptions(model=Model.ASTRA_SIM), "astra-sim"),
        (SYSTEM, NetworkOptions(network=ContentionModel.CONGESTION_AWARE), "astra-sim"),
        ("V100_32GB_4GPU", NetworkOptions(algorithm="ring"), "hespas"),
        ("V100_32GB_4GPU", NetworkOptions(imperfect=Cluster(links=(BAD_LINK,))), "hespas"),
    ],
)
def test_the_network_model_follows_from_the_system_unless_it_is_chosen(
    system: str, given: NetworkOptions, model: str
) -> None:
    assert machines.model_of(given, find_system(system)).model.value == model


def test_systems_that_are_not_described_to_astra_sim_have_our_model() -> None:
    preset = load_system(SYSTEM)
    own = bare_system("own", interconnect=preset.interconnect)
    assert machines.model_of(NetworkOptions(), own).model is Model.HESPAS
    bare = replace(preset, interconnect=None)
    assert machines.model_of(NetworkOptions(), bare).model is Model.ASTRA_SIM


def test_rates_override_those_of_the_clusters_part() -> None:
    system = find_system("8xH100_80GB")
    for peak_flops in (None, 1e12):
        rates = EstimateOptions(memory_bandwidth=1e12, peak_flops=peak_flops)
        options = with_node(rates, system)
        device = machines.device_of(options)
        assert device is not None
        assert (device.name, device.memory_bandwidth_bytes_per_s) == ("H100_80GB", 1e12)
        assert device.rate("bf16") == load_device("H100_80GB").rate("bf16")


def test_links_are_changed_once() -> None:
    given = NetworkOptions(
        cluster="16xH100_80GB", link_bandwidth=(LinkBandwidth(dimension=1, factor=0.5),)
    )
    system = machines.system_of(given)
    assert system is not None
    again = machines.system_of(replace(given, cluster=None, system=system))
    assert again is system
