"""What a command simulates on, from its flags."""

from __future__ import annotations

from hespas.cli.flags import Flags
from hespas.errors import ConfigError
from hespas.hardware.cluster import read_cluster
from hespas.hardware.presets import load_system
from hespas.hardware.system import System
from hespas.simulate.models import Model, ModelChoice, model_named
from hespas.simulate.network import Network, network_named


def system_of(flags: Flags) -> System | None:
    """Return the cluster, where one is given; `ConfigError` for flags that need one."""
    if flags.system is not None:
        return load_system(flags.system)
    given = {
        "--network": flags.network,
        "--model": flags.model,
        "--algorithm": flags.algorithm,
        "--cluster": flags.cluster,
    }
    for flag, value in given.items():
        if value is not None:
            raise ConfigError(f"{flag} has no effect without --system", hint="give --system")
    return None


def network_of(flags: Flags) -> Network:
    """Return how transfers share links."""
    return network_named(flags.network or Network.CONGESTION_UNAWARE.value)


def model_of(flags: Flags) -> ModelChoice:
    """Return who times communication, with what it is told."""
    cluster = None if flags.cluster is None else read_cluster(flags.cluster)
    if cluster is not None and cluster.programs:
        message = "programs are for hespas simulate: there is one program here"
        raise ConfigError(message, location=str(flags.cluster), hint="leave them out")
    return ModelChoice(
        model=model_named(flags.model or Model.ASTRA_SIM.value),
        network=None if flags.network is None else network_named(flags.network),
        algorithm=flags.algorithm,
        cluster=cluster,
    )
