"""Refuse rates of a device on which no price depends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hespas.base.units import format_quantity
from hespas.errors import ConfigError, option
from hespas.prediction.machines import device_of, estimator_of, node_of
from hespas.prediction.options import EstimateOptions, PredictOptions
from hespas.price.cache import MemoryStore
from hespas.price.estimate import Estimate, sum_estimates
from hespas.price.graph import Clocked, estimate_graph
from hespas.split.modules import RegionModules
from hespas.split.regions import RegionGraph

Divided = Sequence[tuple[RegionGraph, RegionModules]]
"""The programs of a step, with their distinct regions."""

_SLOWER = 1e-6
"""The part of a rate with which whatever depends on it takes longer."""


def check_rates(programs: Divided, options: PredictOptions) -> None:
    """Raise `ConfigError` for given rates that decide no price.

    A rate decides a price of a program if a far smaller rate changes it.
    """
    changed = _slowed(options.estimate)
    if not changed:
        return
    before = _prices(programs, options)
    times = [price.duration_ps for price in before]
    for name, slower in changed.items():
        after = _prices(programs, replace(options, estimate=slower))
        if [price.duration_ps for price in after] == times:
            raise _no_effect(name, sum_estimates(before), options, programs[0][0])


def _slowed(estimate: EstimateOptions) -> dict[str, EstimateOptions]:
    """Return the options with each given rate slowed, by its name.

    A device without a node has no other peak than the one that is given.
    """
    slowed: dict[str, EstimateOptions] = {}
    if estimate.peak_flops is not None and node_of(estimate) is not None:
        slowed["peak_flops"] = replace(estimate, peak_flops=estimate.peak_flops * _SLOWER)
    if estimate.per_datatype_flops:
        rates = {name: rate * _SLOWER for name, rate in estimate.per_datatype_flops.items()}
        slowed["per_datatype_flops"] = replace(estimate, per_datatype_flops=rates)
    return slowed


def _prices(programs: Divided, options: PredictOptions) -> list[Estimate]:
    """Return the prices of distinct regions at the boost clock."""
    prices: list[Estimate] = []
    for graph, modules in programs:
        estimator = estimator_of(graph.program, options)
        if isinstance(estimator, Clocked) and estimator.device.power is not None:
            estimator = estimator.at_clock(1.0)
        priced = estimate_graph(graph, modules, estimator, store=MemoryStore())
        prices.extend(module.estimate for module in priced.modules)
    return prices


def _no_effect(
    name: str, total: Estimate, options: PredictOptions, graph: RegionGraph
) -> ConfigError:
    device, main, hint = device_of(options.estimate), total.total.main_type, "drop it"
    if device is not None and main:
        served = device.served_by(main) or main
        rate = format_quantity(device.rate(main), "FLOP/s").replace(" ", "")
        hint += (
            f", or change the rate of most of its arithmetic: {option('per_datatype_flops')} "
            f"{served}=RATE ({rate} now)"
        )
    method = estimator_of(graph.program, options).method
    return ConfigError(
        f"{option(name)} has no effect: no time that method {method} predicts depends on it",
        location=graph.program.source,
        hint=hint,
    )
