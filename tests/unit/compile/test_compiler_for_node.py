"""How devices stand, as the compilers see them."""

from __future__ import annotations

import pytest

from compilers import needs_tpu
from hespas.compile import job
from hespas.compile.compiler import check_compilation, compile_for_node, layout_of
from hespas.compile.job import Layout
from hespas.compile.options import DEFAULT_OPTIONS
from hespas.errors import DeviceCountError, HespasError, UnsupportedError
from hespas.frontend.load import load_source
from hespas.frontend.mesh import with_device_order
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.presets import load_system
from hespas.hardware.sized import find_system
from hespas.hardware.system import System, bare_system
from hespas.program.attrs import CollectiveAttrs
from hespas.program.groups import DeviceOrder
from hespas.program.program import all_ops
from programs import all_reduce, on_devices, vector_main

REDUCED = on_devices(vector_main(all_reduce("%r", "%a"))).encode()


def rings(*sizes: int) -> System:
    dimensions = [dimension_of(Shape.RING, size, 50 * 2**30, 1e-6) for size in sizes]
    return bare_system("rings", dimensions=tuple(dimensions))


def test_without_a_system_the_program_says_how_many() -> None:
    assert layout_of("TPUv5e", None, None) == Layout()
    assert layout_of("H100_80GB", None, 4) == Layout(devices=4)


def test_gpus_of_the_first_of_several_dimensions_stand_in_a_host() -> None:
    system = load_system("A100_SXM_40GB_4GPU_2")
    assert layout_of("A100_SXM_40GB", system, None) == Layout(devices=8, per_host=4)
    alone = load_system("A100_SXM_40GB_4GPU")
    assert layout_of("A100_SXM_40GB", alone, None) == Layout(devices=4)


@pytest.mark.parametrize(
    ("node", "sizes", "topology"),
    [
        ("TPUv5e", (4, 4), "4x4"),
        ("TPUv5e", (8, 2), "2x8"),
        ("TPUv4", (2, 2, 4), "2x2x4"),
        ("TPUv3", (2, 4, 2), "2x4"),
        ("TPUv7x", (2, 2, 2, 4), "2x2x4"),
        # Of another form than the slices of the generation: their number decides.
        ("TPUv5e", (16,), None),
        ("TPUv5e", (2, 2, 4), None),
        ("TPUv3", (4, 2), None),
    ],
)
def test_axes_of_a_slice_are_its_topology(
    node: str, sizes: tuple[int, ...], topology: str | None
) -> None:
    found = layout_of(node, rings(*sizes), None)
    assert (found.per_host, found.topology) == (None, topology)


def test_a_given_number_of_devices_goes_before_the_system_s() -> None:
    assert layout_of("TPUv5e", rings(4, 4), 4) == Layout(devices=4)


@needs_tpu
def test_a_system_of_too_few_devices_is_reported_as_one() -> None:
    shown = r"made for 4 devices, and 8 are .* rings has 8; choose a system of as many"
    with pytest.raises(DeviceCountError, match=shown):
        compile_for_node(
            REDUCED, name="a.mlir", node="TPUv5e", system=rings(2, 4), devices=None, cache=None
        )
    with pytest.raises(DeviceCountError, match=r"8 are asked for; drop the count, or give 4"):
        compile_for_node(
            REDUCED, name="a.mlir", node="TPUv5e", system=rings(2, 2), devices=8, cache=None
        )


@pytest.mark.parametrize(
    ("node", "devices", "message"),
    [
        ("H100_80GB", 12, "12 devices do not fill hosts of 8"),
        ("TPUv5e", 12, "no TPU v5e slice has 12 devices"),
        ("MI300X", 8, "no compiler at hand has a description"),
    ],
)
def test_what_nothing_compiles_for_is_known_before_the_compiler_starts(
    node: str, devices: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def any_versions(target: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr(job, "compiler_versions", any_versions)
    check_compilation("H100_80GB", system=None, devices=16, options=DEFAULT_OPTIONS)
    with pytest.raises(HespasError, match=message):
        check_compilation(node, system=None, devices=devices, options=DEFAULT_OPTIONS)


@needs_tpu
def test_a_system_of_several_dimensions_is_compiled_for() -> None:
    found = compile_for_node(
        REDUCED, name="a.mlir", node="TPUv5e", system=rings(2, 2), devices=None
    )
    assert found.topology == "v5e:2x2"


def test_slices_of_a_system_are_those_of_the_compiler() -> None:
    found = layout_of("TPUv6e", find_system("4xTPUv6e_2x4"), None)
    assert found == Layout(devices=32, topology="2x4", slices=4)
    found = layout_of("TPUv5e", find_system("32x256xTPUv5e"), None)
    assert found == Layout(devices=8192, topology="16x16", slices=32)


@needs_tpu
def test_a_program_for_several_slices_is_compiled_and_read_for_all_devices() -> None:
    text = on_devices(
        vector_main(all_reduce("%r", "%a", groups=[list(range(16))])), partitions=16
    ).encode()
    made = compile_for_node(
        text, name="a.mlir", node="TPUv6e", system=find_system("2x8xTPUv6e"), devices=None
    )
    program = load_source(made.hlo_proto, name="a.hlo.pb")
    assert (program.replicas or 1) * (program.partitions or 1) == made.device_count == 16
    found = [op.attrs for op in all_ops(program) if isinstance(op.attrs, CollectiveAttrs)]
    across = [each.groups.listed() for each in found if len(each.groups.listed()[0]) == 2]
    assert across == [tuple((place, place + 8) for place in range(8))]


@needs_tpu
def test_devices_of_several_slices_stand_in_the_order_of_their_numbers() -> None:
    text = on_devices(vector_main(all_reduce("%r", "%a", groups=[list(range(16))])), partitions=16)
    mixed = with_device_order(text.encode(), DeviceOrder(dimensions=(2, 8), permutation=(1, 0)))
    with pytest.raises(UnsupportedError, match="several slices in the order"):
        compile_for_node(
            mixed, name="a.mlir", node="TPUv6e", system=find_system("2x8xTPUv6e"), devices=None
        )
