"""Programs from where users have them."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hespas.errors import ConfigError, ProgramError
from hespas.frontend.load import load_source
from hespas.memory.usage import memory_use
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Alias, is_communication_op
from hespas.sources.dump import export_dump
from hespas.sources.exported import Exported, partitioned
from hespas.sources.function import export_lowered, export_named, export_serialized
from hespas.work.fusion import host_traffic
from hespas.xla.mlir.module import is_jax_export

OWN = """
import jax, jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

def step():
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rows = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P("x", None)))
    return (lambda a, b: jnp.tanh(a @ b).sum()), (rows, rows)

def donated(*result_shardings):
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rows, whole = NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P())
    state = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=rows)
    batch = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=whole)
    given = {"out_shardings": (whole, rows, rows)} if result_shardings else {}
    train = lambda batch, w, v: (batch.sum(), w - batch.sum() * v, v + 1)
    return jax.jit(train, donate_argnums=(1, 2), **given), (batch, state, state)

def donated_to_results():
    return donated(True)

def lowered():
    return jax.jit(jnp.sin).lower(jax.ShapeDtypeStruct((8,), jnp.float32))

def offloaded():
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    there = NamedSharding(mesh, P("x", None), memory_kind="pinned_host")
    rows = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=there)
    host, device = jax.memory.Space.Host, jax.memory.Space.Device
    return (lambda a: jax.device_put(jnp.sin(jax.device_put(a, device)), host)), (rows,)

def number():
    return 3

def broken():
    raise RuntimeError("no such weights")

def factorised():
    return jnp.linalg.cholesky, (jax.ShapeDtypeStruct((64, 64), jnp.float32),)
"""


def collectives(made: Exported) -> Counter[str]:
    program = load_source(partitioned(made).content, name=made.name)
    return Counter(op.kind for op in program.main.body.operations if is_communication_op(op))


STEP = {"all_gather": 1, "all_reduce": 1}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Exported]:
    (tmp_path / "own_model.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name: export_named(f"own_model:{name}")


def test_what_is_kept_on_the_host_stays_there_through_export_and_partitioning(
    own: Callable[[str], Exported],
) -> None:
    made = partitioned(own("offloaded"))
    program = load_source(made.content, name=made.name)
    moved = [host_traffic(op) for op in program.main.body.operations if host_traffic(op)]
    part_bytes = 64 * 64 * 4 // 4
    assert [(each.to_host_bytes, each.from_host_bytes) for each in moved] == [
        (0, part_bytes),
        (part_bytes, 0),
    ]
    use = memory_use(program)
    assert (use.argument_bytes, use.output_bytes) == (0, 0)
    assert use.host_bytes == 2 * part_bytes


@pytest.mark.parametrize("name", ["donated", "donated_to_results"])
def test_donated_arguments_stay_so_when_partitioned(
    own: Callable[[str], Exported], name: str
) -> None:
    made = partitioned(own(name))
    program = load_source(made.content, name=made.name)

    assert program.aliases == (Alias(result=1, argument=1), Alias(result=2, argument=2))
    usage = memory_use(program)
    assert usage.alias_bytes == 2 * (64 * 32 // 4) * 4
    assert usage.peak_bytes < usage.argument_bytes + usage.output_bytes


def test_a_function_with_its_abstract_arguments(own: Callable[[str], Exported]) -> None:
    made = own("step")
    assert made.devices == 4
    assert collectives(made) == STEP


def test_a_lowered_function(own: Callable[[str], Exported]) -> None:
    made = own("lowered")
    assert made.devices == 1
    assert partitioned(made) == made
    assert b"stablehlo.sine" in made.content


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "it returned a int; let it return"),
        ("broken", "RuntimeError: no such weights"),
        ("missing", "own_model has no 'missing'"),
    ],
)
def test_a_function_of_no_use(own: Callable[[str], Exported], name: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        own(name)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(ProgramError, match="No module named 'nowhere'"):
        export_named("nowhere:step")


def test_something_without_text_is_no_lowered_function() -> None:
    with pytest.raises(AttributeError):
        export_lowered(3)


def test_an_artifact_of_jax_export(jax_files: Path) -> None:
    source = (jax_files / "step.jax_export").read_bytes()
    assert is_jax_export(source)
    made = export_serialized(source, name="step")
    assert made.devices == 4
    assert collectives(made) == STEP


def test_a_cut_artifact(jax_files: Path) -> None:
    source = (jax_files / "step.jax_export").read_bytes()
    with pytest.raises(ProgramError, match=r"not what jax.export serialises"):
        export_serialized(source[: len(source) // 2], name="step")


def test_a_dump_from_after_partitioning(jax_files: Path) -> None:
    made = export_dump(jax_files / "whole")
    assert (made.devices, made.is_partitioned) == (4, True)
    assert "after_spmd-partitioning" in made.notes[0]
    assert collectives(made) == STEP


@pytest.mark.parametrize("suffix", [".txt", ".hlo.pb"])
def test_a_dump_from_before_it_is_partitioned(jax_files: Path, tmp_path: Path, suffix: str) -> None:
    for path in (jax_files / "before").glob(f"*before_optimizations{suffix}"):
        shutil.copy(path, tmp_path)
    made = export_dump(tmp_path)
    assert (made.devices, made.is_partitioned) == (4, False)
    assert collectives(made) == STEP


def test_a_dump_of_several_modules(jax_files: Path) -> None:
    with pytest.raises(ConfigError, match="2 modules were dumped: jit_other, jit_step"):
        export_dump(jax_files / "several")
    assert collectives(export_dump(jax_files / "several", module="step")) == STEP
    with pytest.raises(ConfigError, match="no module is named 'train'"):
        export_dump(jax_files / "several", module="train")


def test_a_dump_without_the_pass(jax_files: Path, tmp_path: Path) -> None:
    for path in (jax_files / "before").glob("*cpu_after_optimizations.txt"):
        shutil.copy(path, tmp_path)
    with pytest.raises(ProgramError, match=r"there are cpu_after_optimizations"):
        export_dump(tmp_path)


def test_a_directory_without_a_dump(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no modules of XLA"):
        export_dump(tmp_path)


@pytest.mark.parametrize(
    ("platform", "library"), [("cuda", "cusolver_potrf_ffi"), ("cpu", "lapack_spotrf_ffi")]
)
def test_a_function_is_lowered_for_the_libraries_of_its_platform(
    own: Callable[[str], Exported], platform: str, library: str
) -> None:
    del own
    made = export_named("own_model:factorised", platform=platform)
    assert library in {
        op.attrs.target
        for op in load_source(made.content, name=made.name).main.body.operations
        if isinstance(op.attrs, CustomCallAttrs)
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_model:stepp", "own_model has no 'stepp'; did you mean 'step'"),
        ("no_such_module:step", "No module named 'no_such_module'; run hespas in the directory"),
    ],
)
def test_a_name_that_is_not_there_is_told_apart_from_what_it_returns(
    own: Callable[[str], Exported], name: str, message: str
) -> None:
    del own
    with pytest.raises(ProgramError, match=message):
        export_named(name)
