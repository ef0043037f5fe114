"""Programs that differ in sizes of a mesh alone, exported once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.base.cache import ContentCache
from hespas.base.process import stay
from hespas.errors import ConfigError, ProgramError
from hespas.models.model import MeshAxes, Part, PartProgram, parse_mesh
from hespas.sources.function import export_model
from hespas.sources.options import ModelOptions
from hespas.sources.source import ModelSource, find_source
from hespas.sources.workload import export_cache, on_mesh, read_workload
from hespas.sources.zoo import same_but_for_sizes, with_both_axes

SMALL = {"layers": "2"}
CASES: list[tuple[str, str, str, dict[str, str]]] = [
    ("llama3-8b", "data=4,fsdp=2", "data=2,fsdp=4", {}),
    ("llama3-8b", "data=4,fsdp=2,tp=2", "data=2,fsdp=4,tp=2", {"scan": "true"}),
    ("llama3-8b", "data=4,fsdp=2,tp=2", "data=1,fsdp=8,tp=2", {"attention": "cudnn"}),
    ("llama3-8b", "fsdp=2,data=4,context=2", "fsdp=4,data=2,context=2", {"accumulation": "2"}),
    ("llama3-8b", "data=4,fsdp=2", "data=2,fsdp=4", {"remat": "offload"}),
    ("llama2-7b", "data=4,fsdp=2", "data=2,fsdp=4", {"remat": "full"}),
    ("gpt3-13b", "data=4,fsdp=2,tp=2", "data=2,fsdp=4,tp=2", {"zero": "3", "scan": "true"}),
    ("mixtral-8x7b", "data=4,fsdp=2,expert=2", "data=2,fsdp=4,expert=2", {}),
    ("gemma2-9b", "data=4,fsdp=2", "data=8,fsdp=1", {"attention": "unfused"}),
    ("deepseek-v3", "data=2,fsdp=4,expert=2", "data=4,fsdp=2,expert=2", {"layers": "4"}),
]


@pytest.fixture
def kept(tmp_path: Path) -> ContentCache:
    return export_cache(tmp_path / "exported")


def source(model: str, mesh: str, more: dict[str, str]) -> ModelSource:
    axes = parse_mesh(mesh)
    given = {**SMALL, **more, "batch": more.get("batch", "2")}
    found = find_source(model, ModelOptions(mesh=axes, settings=given), devices=axes.device_count)
    assert isinstance(found, ModelSource)
    return found


@pytest.mark.parametrize(
    ("model", "one", "other", "more"),
    [
        *CASES[1:3],
        CASES[7],
        *(
            pytest.param(*case, marks=pytest.mark.rest)
            for case in CASES[:1] + CASES[3:7] + CASES[8:]
        ),
    ],
)
def test_a_program_of_one_mesh_is_that_of_another(
    model: str, one: str, other: str, more: dict[str, str]
) -> None:
    first, second = source(model, one, more), source(model, other, more)
    assert same_but_for_sizes(first).texts == same_but_for_sizes(second).texts
    exported = [export_model(model, each.texts).content for each in (first, second)]
    assert exported[0] != exported[1]
    assert on_mesh(exported[0], second.mesh, name=model) == exported[1]
    assert on_mesh(exported[1], first.mesh, name=model) == exported[0]
    assert on_mesh(exported[0], first.mesh, name=model) == exported[0]


ONE_AXIS: list[tuple[str, str, dict[str, str]]] = [
    ("llama3-8b", "fsdp=4,tp=2", {"attention": "cudnn", "scan": "true"}),
    ("mixtral-8x7b", "data=4,expert=2", {}),
    ("llama3-8b", "fsdp=8", {"remat": "offload"}),
    ("llama3-8b", "data=8", {"accumulation": "2"}),
    ("llama3-8b", "tp=2,fsdp=4", {}),
    ("llama3-8b", "fsdp=2,context=2,sequence=2", {}),
    ("deepseek-v3", "fsdp=4,expert=2", {"layers": "4"}),
    ("gemma2-9b", "fsdp=8", {"attention": "unfused"}),
]


@pytest.mark.parametrize(
    ("model", "mesh", "more"),
    [*ONE_AXIS[:2], *(pytest.param(*case, marks=pytest.mark.rest) for case in ONE_AXIS[2:])],
)
def test_a_program_of_both_axes_is_that_of_one(model: str, mesh: str, more: dict[str, str]) -> None:
    own = source(model, mesh, more)
    both = with_both_axes(own)
    assert set(both.mesh.names) == {"data", "fsdp", *own.mesh.names}
    assert both.mesh.device_count == own.mesh.device_count
    exported = [export_model(model, each.texts).content for each in (both, own)]
    assert on_mesh(exported[0], own.mesh, name=model) == exported[1]


def test_what_does_not_fit_is_told_of_the_mesh_that_was_given() -> None:
    with pytest.raises(ConfigError, match="by fsdp=3 of the mesh"):
        with_both_axes(source("llama3-8b", "fsdp=3", {}))
    for mesh in ("data=2,fsdp=2", "tp=2"):
        own = source("llama3-8b", mesh, {})
        assert with_both_axes(own) is own
    own = source("gpt3-13b", "data=4,tp=2", {"zero": "1"})
    assert with_both_axes(own) is own


def test_programs_of_other_sizes_are_others() -> None:
    meshes = ("data=4,fsdp=2", "fsdp=2,data=4", "data=8,fsdp=2", "data=4,fsdp=2,tp=2", "fsdp=8")
    texts = [same_but_for_sizes(source("llama3-8b", mesh, {})).texts["mesh"] for mesh in meshes]
    assert len(set(texts)) == len(meshes)
    assert texts[-1] == "fsdp=8"


def test_programs_of_other_models_have_a_mesh_of_their_own() -> None:
    resnet = find_source("resnet18", ModelOptions(mesh=parse_mesh("data=2,fsdp=2")), devices=4)
    assert isinstance(resnet, ModelSource)
    assert same_but_for_sizes(resnet) is resnet
    for zero in ("1", "2"):
        own = source("gpt3-13b", "data=4,fsdp=2,tp=2", {"zero": zero})
        assert same_but_for_sizes(own) is own


def part_of(
    model: str, program: PartProgram, mesh: str, own: str, more: dict[str, str] | None = None
) -> ModelSource:
    """Return a part's program on devices that share its arrays, ``own``."""
    part = Part(layers=2, is_first=True, is_last=True, mesh=parse_mesh(own), program=program)
    options = ModelOptions(
        mesh=parse_mesh(mesh), part=part, settings={"layers": "4", "batch": "4", **(more or {})}
    )
    found = find_source(model, options, devices=parse_mesh(mesh).device_count)
    assert isinstance(found, ModelSource)
    return found


PARTS: list[tuple[str, PartProgram, tuple[str, str], tuple[str, str]]] = [
    ("llama3-8b", PartProgram.BOTH, ("data=4,tp=2", "tp=2"), ("fsdp=2,tp=2", "tp=2")),
    ("llama3-8b", PartProgram.INPUTS, ("data=4", "tp=1"), ("data=2,fsdp=2", "tp=1")),
    ("llama3-8b", PartProgram.UPDATE, ("fsdp=4", "fsdp=4"), ("data=2,fsdp=2", "fsdp=2")),
    (
        "llama3-8b",
        PartProgram.UPDATE,
        ("fsdp=16,tp=2", "fsdp=16,tp=2"),
        ("fsdp=8,tp=2", "fsdp=8,tp=2"),
    ),
    (
        "deepseek-v3",
        PartProgram.UPDATE,
        ("fsdp=4,expert=2", "fsdp=4,expert=2"),
        ("fsdp=2,expert=2", "fsdp=2,expert=2"),
    ),
    (
        "mixtral-8x7b",
        PartProgram.BOTH,
        ("data=4,expert=2", "expert=2"),
        ("fsdp=2,expert=2", "expert=2"),
    ),
]


@pytest.mark.parametrize(
    ("model", "program", "one", "other"),
    [
        *PARTS[:1],
        *PARTS[2:4],
        *(pytest.param(*case, marks=pytest.mark.rest) for case in PARTS[1:2] + PARTS[4:]),
    ],
)
def test_a_part_of_one_mesh_is_that_of_another(
    model: str, program: PartProgram, one: tuple[str, str], other: tuple[str, str]
) -> None:
    first, second = (
        part_of(model, program, *one),
        part_of(model, program, *other, {"accumulation": "4", "batch": "16"}),
    )
    reduced = [same_but_for_sizes(each) for each in (first, second)]
    assert reduced[0].texts == reduced[1].texts
    assert reduced[0].part == reduced[1].part
    exported = [export_model(model, each.texts, part=each.part).content for each in (first, second)]
    if first.part != second.part:
        assert exported[0] != exported[1]
        exported[0] = on_mesh(exported[0], second.mesh, name=model)
    assert exported[0] == exported[1]


@pytest.mark.parametrize("own", [("fsdp=4", "fsdp=2"), ("fsdp=2", "fsdp=4"), ("tp=1", "tp=1")])
def test_alike_parts_are_exported_once(
    kept: ContentCache, monkeypatch: pytest.MonkeyPatch, own: tuple[str, str]
) -> None:
    first, second = (part_of("llama3-8b", PartProgram.UPDATE, "data=2", mesh) for mesh in own)
    stay(stays=True)
    try:
        read_workload(first, cache=kept)
        with monkeypatch.context() as patched:
            patched.setattr("hespas.sources.function.export_model", None)
            derived = read_workload(second, cache=kept)
        assert derived == read_workload(second, cache=None)
    finally:
        stay(stays=False)


def test_updates_that_widths_do_not_allow_are_others() -> None:
    meshes = ("fsdp=4", "fsdp=3")
    parts = [
        same_but_for_sizes(part_of("llama3-8b", PartProgram.UPDATE, "data=1", mesh)).part
        for mesh in meshes
    ]
    assert [str(part.mesh) for part in parts if part] == ["fsdp=2", "fsdp=3"]


def test_alike_programs_are_exported_once(
    kept: ContentCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    meshes = ("fsdp=8,tp=2", "data=4,fsdp=2,tp=2", "data=2,fsdp=4,tp=2", "data=8,tp=2")
    first, *others = (source("llama3-8b", mesh, {}) for mesh in meshes)
    stay(stays=True)
    try:
        read_workload(first, cache=kept)
        with monkeypatch.context() as patched:
            patched.setattr("hespas.sources.function.export_model", None)
            derived = [read_workload(other, cache=kept) for other in others]
        assert derived == [read_workload(other, cache=None) for other in others]
    finally:
        stay(stays=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"module {}", "it declares 0 meshes, and not one"),
        (b'sdy.mesh @mesh = <["x"=2]>\nsdy.mesh @mesh = <["x"=2]>', "it declares 2 meshes"),
        (b'sdy.mesh @mesh = <["x"=2]>', "its mesh has no axis fsdp"),
    ],
)
def test_a_program_without_the_mesh_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        on_mesh(text, MeshAxes(axes=(("fsdp", 2),)), name="step")
