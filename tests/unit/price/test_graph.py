"""Distinct regions are estimated once; caches change nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hespas.base import version
from hespas.errors import CacheError, CostError
from hespas.hardware.device import Device
from hespas.price import graph as graph_module
from hespas.price.cache import DiskStore, MemoryStore, Store
from hespas.price.estimate import Estimate, OpEstimate
from hespas.price.graph import GraphEstimate, cache_keys, estimate_graph
from hespas.price.methods import RooflineOptions
from hespas.price.roofline import Roofline
from hespas.program.devices import with_device_count
from hespas.program.program import Program
from hespas.split.modules import region_modules
from hespas.split.options import SplitOptions, SplitStrategy
from hespas.split.regions import Compute, RegionGraph
from hespas.split.strategies import split_program
from programs import all_reduce, on_devices, read, vector_main

DEVICE = Device(name="d", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e11, tdp_w=100.0)

# Two operations three times, one once: 4 regions of computation, 2 of them distinct.
STEPS = "\n".join(
    f"%b{at} = stablehlo.sine %c{at} : tensor<8xf32>\n"
    f"%s{at} = stablehlo.add %b{at}, %b{at} : tensor<8xf32>\n"
    + all_reduce(f"%c{at + 1}", f"%s{at}", channel=at + 1)
    for at in range(3)
).replace("%c0 ", "%a ")
REPEATS = on_devices(vector_main(f"{STEPS}\n%r = stablehlo.cosine %c3 : tensor<8xf32>"))


def split(text: str = REPEATS, strategy: SplitStrategy = SplitStrategy.LINEAR) -> RegionGraph:
    program = with_device_count(read(text), requested=None, system=None)
    return split_program(program, SplitOptions(strategy=strategy))


def estimated(
    graph: RegionGraph, store: Store | None = None, *, reuse: bool = True, threads: int = 1
) -> GraphEstimate:
    kept = (store or MemoryStore()) if reuse else None
    modules = region_modules(graph)
    return estimate_graph(graph, modules, Roofline(device=DEVICE), store=kept, threads=threads)


def test_reuse_is_counted_right() -> None:
    """Of 4 regions 2 are hits; of 7 operations 4 are in them."""
    reuse = estimated(split()).reuse
    assert (reuse.regions, reuse.region_hits) == (4, 2)
    assert (reuse.operations, reuse.operation_hits) == (7, 4)
    assert reuse.block_reuse_rate == 0.5
    assert reuse.operator_reuse_factor == 4 / 7


def test_a_second_run_finds_everything() -> None:
    store = MemoryStore()
    first = estimated(split(), store)
    second = estimated(split(), store)
    assert (second.reuse.region_hits, second.reuse.operation_hits) == (4, 7)
    assert second.reuse.elapsed_s == 0
    assert [each.from_store for each in second.modules] == [True, True]
    assert second.total == first.total
    assert second.estimate_of_region == first.estimate_of_region


def test_without_a_store_nothing_is_reused() -> None:
    alone = estimated(split(), reuse=False)
    assert alone.reuse.region_hits == 0
    assert len(alone.modules) == 4
    assert alone.total == estimated(split()).total


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Takes one second by its clock for every region."""

    seen: list[int] = field(default_factory=list[int])

    @property
    def method(self) -> str:
        return "slow"

    @property
    def parameters(self) -> Mapping[str, object]:
        return {}

    def assumptions(self, program: Program) -> tuple[str, ...]:
        del program
        return ("it is slow",)

    def estimate(self, region: Compute, program: Program) -> Estimate:  # noqa: ARG002 - the protocol's signature
        self.seen.append(region.id)
        return Estimate(per_op={"x": OpEstimate(count=1.0, time_s=1.0)})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: Iterator[int] = iter(range(1000))
    monkeypatch.setattr(graph_module, "perf_counter", lambda: float(next(ticks)))


@pytest.mark.usefixtures("clock")
def test_time_reduction_is_the_part_that_was_saved() -> None:
    """2 s were spent on what takes 4 s without reuse: half is saved."""
    graph, slow = split(), Slow()
    reuse = estimate_graph(graph, region_modules(graph), slow, store=MemoryStore()).reuse
    assert len(slow.seen) == 2
    assert (reuse.elapsed_s, reuse.elapsed_without_reuse_s) == (2.0, 4.0)
    assert reuse.time_reduction == 0.5


@pytest.mark.usefixtures("clock")
def test_without_reuse_no_time_is_saved() -> None:
    graph = split()
    reuse = estimate_graph(graph, region_modules(graph), Slow(), store=None).reuse
    assert reuse.elapsed_s == reuse.elapsed_without_reuse_s == 4.0
    assert reuse.time_reduction == 0


def test_energy_adds_up_over_operations_regions_and_runs(tmp_path: Path) -> None:
    store = DiskStore(directory=tmp_path)
    for _ in range(2):
        found = estimated(split(), store)
        total = found.total.total
        assert total.energy_j == pytest.approx(DEVICE.tdp_w and DEVICE.tdp_w * total.time_s)
        per_region = [each.total.energy_j for each in found.estimate_of_region if each]
        assert len(per_region) == 4
        assert sum(energy or 0.0 for energy in per_region) == pytest.approx(total.energy_j)


@pytest.mark.parametrize("strategy", SplitStrategy)
def test_no_kind_of_cache_changes_an_estimate(tmp_path: Path, strategy: SplitStrategy) -> None:
    graph = split(strategy=strategy)
    expected = estimated(graph, reuse=False)
    disk = DiskStore(directory=tmp_path / "cache")
    for store in (MemoryStore(), disk, disk, DiskStore(directory=tmp_path / "cache")):
        for threads in (1, 4):
            found = estimated(graph, store, threads=threads)
            assert found.total == expected.total
            assert list(found.total.per_op) == list(expected.total.per_op)
            assert found.estimate_of_region == expected.estimate_of_region


KEY = "region"


def key(device: Device = DEVICE, text: str = KEY, **options: bool) -> str:
    roofline = Roofline(device=device, options=RooflineOptions(**options))
    (key,) = cache_keys([text], roofline, is_scheduled=False)
    return key


def test_the_key_is_what_decides_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {
        key(),
        key(text="another region"),
        key(Device(name="d", peak_flops=2e12, memory_bandwidth_bytes_per_s=1e11, tdp_w=100.0)),
        key(Device(name="d", peak_flops=1e12, memory_bandwidth_bytes_per_s=2e11, tdp_w=100.0)),
        key(Device(name="d", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e11, tdp_w=200.0)),
        key(Device(name="d", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e11)),
        key(warn_on_unknown_type=True),
        key(error_on_unknown_type=True),
        *cache_keys([KEY], Slow(), is_scheduled=False),
        *cache_keys([KEY], Slow(), is_scheduled=True),
    }
    assert len(others) == 10
    monkeypatch.setattr(graph_module, "__version__", version.__version__ + ".post1")
    assert key() not in others


def test_the_key_is_not_what_does_not() -> None:
    named = Device(
        name="other name",
        peak_flops=1e12,
        memory_bandwidth_bytes_per_s=1e11,
        tdp_w=100.0,
        memory_capacity_bytes=2**30,
    )
    assert key(named) == key()


ON_EIGHT = on_devices(
    REPEATS[REPEATS.index("func.func") : -2].replace(
        "dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>",
        "dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>",
    ),
    partitions=8,
)


@pytest.mark.parametrize(
    "text", [REPEATS.replace("%b", "%other"), f"// A comment.\n\n{REPEATS}", ON_EIGHT]
)
def test_names_places_and_device_counts_do_not_matter(text: str) -> None:
    store = MemoryStore()
    estimated(split(), store)
    assert estimated(split(text), store).reuse.region_hits == 4


@pytest.mark.parametrize("threads", [1, 4])
def test_a_failure_keeps_what_was_estimated_before_it(tmp_path: Path, threads: int) -> None:
    text = vector_main(
        "%b = stablehlo.sine %a : tensor<8xf32>\n"
        "%r = stablehlo.custom_call @mine(%b) : (tensor<8xf32>) -> tensor<8xf32>"
    )
    store = DiskStore(directory=tmp_path / "cache")
    with pytest.raises(CostError, match="mine"):
        estimated(split(text, SplitStrategy.INDIVIDUAL), store, threads=threads)
    sine = vector_main("%r = stablehlo.sine %a : tensor<8xf32>")
    assert estimated(split(sine), store).reuse.region_hits == 1


def test_a_damaged_entry_is_reported(tmp_path: Path) -> None:
    store = DiskStore(directory=tmp_path)
    estimated(split(), store)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE estimates SET value = '{}'")
    with pytest.raises(CacheError, match=r"estimates\.sqlite: .*no estimate; delete"):
        estimated(split(), store)


def test_a_store_keeps_what_it_has_first(tmp_path: Path) -> None:
    for store in (DiskStore(directory=tmp_path), MemoryStore()):
        store.write({})
        store.write({"a": "1", "b": "2"})
        assert store.read(["a", "c", "b", "a"]) == {"a": "1", "b": "2"}
        many = {str(at): "x" for at in range(2000)}
        store.write(many)
        assert store.read([*many, "a"]) == many | {"a": "1"}


def test_progress_reaches_the_number_of_regions() -> None:
    graph = split()
    done: list[int] = []
    estimate_graph(graph, region_modules(graph), Slow(), store=MemoryStore(), progress=done.append)
    assert sum(done) == 4
