from __future__ import annotations

import re

import pytest

from hespas.errors import DeviceCountError, ProgramError, UnsupportedError
from hespas.xla.compile.prepare import Prepared, prepare
from programs import VECTOR, all_reduce, main_function, on_devices, vector_main

ARGUMENT = f"%a: {VECTOR}"
ALIASES = (
    'mhlo.input_output_alias = [{alias = {kind = "may_alias", parameter_index = array<i64>, '
    "parameter_number = 0 : i64}, output_index = array<i64>}], "
    'mhlo.is_dynamic = false, mhlo.spmd_parameters_shardings = ["{devices=[4]<=[4]}"]'
)


def prepared(text: str, *, devices: int | None = None, as_replicas: bool = False) -> Prepared:
    return prepare(
        text.encode(), name="a.mlir", devices=devices, partitions_as_replicas=as_replicas
    )


def printed(text: str, *, devices: int | None = None, as_replicas: bool = False) -> str:
    return str(prepared(text, devices=devices, as_replicas=as_replicas).module.handle)


def test_copies_are_erased_and_reported() -> None:
    text = vector_main(f"%b = mhlo.copy %a : {VECTOR}\n%r = stablehlo.add %b, %b : {VECTOR}")
    assert "copy" not in printed(text)
    assert "stablehlo.add %arg0, %arg0" in printed(text)
    assert prepared(text).notes == ("1 mhlo.copy operations were erased before compiling",)


def test_aliases_become_attributes_of_arguments() -> None:
    main = vector_main(f"%r = stablehlo.add %a, %a : {VECTOR}")
    text = printed(f"module attributes {{{ALIASES}}} {{\n{main}}}")
    assert "%arg0: tensor<8xf32> {tf.aliasing_output = 0 : i32}" in text
    assert "mhlo" not in text


def test_a_partitioned_program_forgets_its_shardings() -> None:
    main = main_function(
        f"return %a : {VECTOR}",
        arguments=f'{ARGUMENT} {{mhlo.sharding = "{{devices=[4]<=[4]}}", mhlo.kept = 1 : i32}}',
        results=f'{VECTOR} {{mhlo.sharding = "{{replicated}}"}}',
    )
    result = prepared(f"module attributes {{{ALIASES}}} {{\n{main}}}", devices=4)
    text = str(result.module.handle)
    assert "sharding" not in text
    assert "mhlo.kept = 1" in text
    assert not result.partition


@pytest.mark.parametrize(
    ("sharding", "mesh", "shardy"),
    [
        ('mhlo.sharding = "{devices=[4]<=[4]}"', "", False),
        ('sdy.sharding = #sdy.sharding<@m, [{"x"}]>', 'sdy.mesh @m = <["x"=4]>\n', True),
    ],
)
def test_annotated_programs_are_left_to_the_partitioner(
    sharding: str, mesh: str, *, shardy: bool
) -> None:
    main = main_function(
        f"return %a : {VECTOR}", arguments=f"{ARGUMENT} {{{sharding}}}", results=VECTOR
    )
    result = prepared(on_devices(mesh + main))
    assert (result.replicas, result.partitions) == (1, 4)
    assert (result.partition, result.shardy) == (True, shardy)
    assert result.notes == ("the program was partitioned by the compiler",)
    assert "sharding" in str(result.module.handle)


def test_groups_over_mesh_axes_can_be_looked_up() -> None:
    reduced = all_reduce("%r", "%a").replace(
        "dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>",
        '#stablehlo.replica_group_mesh_axes<mesh = @m, axes = [#stablehlo.axis_ref<name = "y">]>',
    )
    mesh = 'sdy.mesh @m = <["x"=2, "y"=3]>\n'
    result = prepared(mesh + vector_main(reduced))
    assert (result.replicas, result.partitions) == (1, 6)
    text = str(result.module.handle)
    assert '{stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, ' in text
    with pytest.raises(ProgramError, match="mesh symbol 'm' not found"):
        prepared(vector_main(reduced))


def test_the_devices_are_the_programs_own() -> None:
    plain = vector_main(f"%r = stablehlo.add %a, %a : {VECTOR}")
    reduced = vector_main(all_reduce("%r", "%a"))

    def counts(text: str, devices: int | None = None) -> tuple[int, int]:
        result = prepared(text, devices=devices)
        return result.replicas, result.partitions

    assert counts(plain) == (1, 1)
    assert counts(plain, 8) == (8, 1)
    assert counts(on_devices(plain, partitions=2, replicas=3)) == (3, 2)
    assert counts(reduced) == (1, 4)
    assert counts(reduced, 4) == (1, 4)
    for text in (reduced, on_devices(plain)):
        with pytest.raises(DeviceCountError, match=r"made for 4 devices, and 8 are asked for"):
            prepared(text, devices=8)


def test_partitions_that_are_replicas_have_no_channels() -> None:
    body = (
        f"{all_reduce('%s', '%a')}\n"
        "%i = stablehlo.partition_id : tensor<ui32>\n"
        "%f = stablehlo.convert %i : (tensor<ui32>) -> tensor<f32>\n"
        f"%g = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> {VECTOR}\n"
        f"%r = stablehlo.add %s, %g : {VECTOR}"
    )
    result = prepared(vector_main(body), as_replicas=True)
    text = str(result.module.handle)
    assert (result.replicas, result.partitions) == (4, 1)
    assert "channel_handle" not in text
    assert "use_global_device_ids" not in text
    assert "partition_id" not in text
    assert "stablehlo.replica_id" in text
    assert result.notes == ("its partitions were compiled as replicas",)
    with pytest.raises(UnsupportedError, match="2 replicas of 2 partitions have no form"):
        prepared(on_devices(vector_main(body), partitions=2, replicas=2), as_replicas=True)


def test_collectives_that_share_a_channel_get_one_each() -> None:
    def channels(*numbers: int) -> list[int]:
        values = ["%a", *(f"%v{index}" for index in range(len(numbers)))]
        body = "\n".join(
            all_reduce(values[index + 1], values[index], channel=number)
            for index, number in enumerate(numbers)
        )
        text = printed(vector_main(body.replace(", use_global_device_ids", ""), result=values[-1]))
        return [int(handle) for handle in re.findall(r"<handle = (\d+), type = 1>", text)]

    assert channels(1, 1, 3, 1, 3) == [1, 4, 3, 5, 6]
    assert channels(7, 2) == [7, 2]
    assert channels(0, 0, 1) == [0, 0, 1]


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"a\.mlir:1:1: cannot be parsed"):
        prepared("nonsense")
