from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from shutil import copyfile
from types import SimpleNamespace

import pytest

from hespas.compile.targets import find_target
from hespas.errors import ConfigError, DeviceCountError, ToolError
from hespas.frontend.load import load_per_device
from hespas.frontend.mesh import global_facts_of_source
from hespas.hardware.sized import find_system
from hespas.program.groups import DeviceOrder
from hespas.program.program import GlobalFacts, all_ops
from hespas.sources import maxtext_worker as worker
from hespas.sources.exported import Exported
from hespas.sources.maxtext import (
    PYTHON_VARIABLE,
    MaxTextStep,
    check_slices,
    export_maxtext,
    interpreter,
    request_of,
    step_key,
)
from hespas.work.attention import attentions
from simulators import program_file

REAL = os.environ.get(PYTHON_VARIABLE)
needs_maxtext = pytest.mark.skipif(not REAL, reason=f"{PYTHON_VARIABLE} names no interpreter")

STAND_IN = """
import json, os, sys
if sys.argv[1] == "-c":
    print(json.dumps(VERSIONS))
    sys.exit()
# The worker's own directory has a maxtext.py, which is not MaxText.
assert sys.argv[1] == "-P"
assert os.path.basename(sys.argv[2]) == "maxtext_worker.py"
request = json.load(open("request.json"))
if "model_name=none" in request["settings"]:
    answer = {"refused": "there is no such model"}
else:
    open("program.mlir", "w").write("module {}")
    answer = {"devices": request["count"], "mesh": {"fsdp": 8}, "tokens": 4096, "notes": ["n"]}
    if "model_name=counted" in request["settings"]:
        answer["model_flops"] = 2.5e15
    if request["slices"] > 1:
        answer["order"] = {"dimensions": [1, 2, 4, 1], "permutation": [0, 2, 1, 3]}
json.dump(answer, open("answer.json", "w"))
"""
SWAPPED = DeviceOrder(dimensions=(2, 4), permutation=(1, 0))
VERSIONS = {
    "python": "3.12",
    "maxtext": "0.2.5",
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "jax-cuda12-pjrt": "0.10.2",
    "libtpu": None,
}


def step(*settings: str, target: str = "H100_SXM", **more: object) -> MaxTextStep:
    given = {"settings": settings, "target": find_target(target), "devices": 8} | more
    return MaxTextStep(**given)  # pyright: ignore[reportArgumentType]


def stand_in(directory: Path, **versions: str | None) -> Path:
    code = STAND_IN.replace("VERSIONS", repr(VERSIONS | versions))
    return Path(program_file(directory / "python", code))


def facts_of(made: Exported) -> GlobalFacts:
    return global_facts_of_source(made.content, name=made.name)


def test_the_program_comes_with_what_was_done_to_it(tmp_path: Path) -> None:
    made = export_maxtext(step("model_name=x", python=stand_in(tmp_path)))
    assert made.devices == 8
    assert made.notes == ("lowered by MaxText for H100_SXM, 4096 tokens a step, mesh fsdp=8", "n")
    assert facts_of(made).tokens == 4096


def test_the_models_flops_are_those_that_maxtext_counts(tmp_path: Path) -> None:
    made = export_maxtext(step("model_name=counted", python=stand_in(tmp_path)))
    assert facts_of(made).model_flops == 2.5e15
    assert "those that MaxText counts, 2.5 PFLOP a step on all devices" in made.notes[1]
    assert facts_of(export_maxtext(step(python=stand_in(tmp_path)))).model_flops is None


def test_maxtext_counts_for_one_device_in_tflop(monkeypatch: pytest.MonkeyPatch) -> None:
    """``calculate_tflops_training_per_device`` of MaxText 0.2.5 returns TFLOP of a device first."""

    def count(config: object, log: bool = True) -> tuple[float, float, float]:
        assert (config, log) == ("configuration", False)
        return 3.0, 2.0, 1.0

    utilities = SimpleNamespace(calculate_tflops_training_per_device=count)
    monkeypatch.setattr(worker, "_module", {"maxtext.utils.maxtext_utils": utilities}.__getitem__)
    assert worker._model_flops("configuration", 8) == pytest.approx(24e12)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(worker, "_module", {"maxtext.utils.maxtext_utils": None}.__getitem__)
    assert worker._model_flops("configuration", 8) is None  # pyright: ignore[reportPrivateUsage]


def test_a_mesh_that_takes_devices_out_of_order_says_so(tmp_path: Path) -> None:
    swapped = step("dcn_fsdp_parallelism=2", python=stand_in(tmp_path))
    made = export_maxtext(swapped)
    assert global_facts_of_source(made.content, name="x").device_order == SWAPPED
    assert "devices in the order [2,4]T(1,0)" in made.notes[1]


def test_what_maxtext_refuses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MaxText's base.yml: there is no such model"):
        export_maxtext(step("model_name=none", python=stand_in(tmp_path)))


def test_an_interpreter_without_maxtext_is_an_error(tmp_path: Path) -> None:
    python = stand_in(tmp_path, maxtext=None)
    with pytest.raises(ToolError, match=r"python: this interpreter \(Python 3.12\) has no maxtext"):
        export_maxtext(step(python=python))


def test_an_interpreter_needs_the_compiler_of_the_target(tmp_path: Path) -> None:
    python = stand_in(tmp_path)
    with pytest.raises(ToolError, match="has no libtpu"):
        export_maxtext(step(target="TPUv6e", python=python))


def test_an_interpreter_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="there is no such interpreter; name one that has MaxText"):
        interpreter(step(python=tmp_path / "none"))


def test_the_environment_names_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = stand_in(tmp_path)
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    assert interpreter(step()) == python
    monkeypatch.delenv(PYTHON_VARIABLE)
    with pytest.raises(ToolError, match=f"{Path(sys.executable).name}: this interpreter"):
        interpreter(step())


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (("model_name",), "'model_name' is no setting"),
        (("--steps=3",), "'--steps=3' is no setting"),
        (("steps=3", "steps=4"), "steps is given twice"),
    ],
)
def test_settings_are_read_before_maxtext_starts(settings: tuple[str, ...], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        step(*settings)


def test_axes_between_slices_make_them() -> None:
    request = request_of(step("dcn_data_parallelism=2", "ici_fsdp_parallelism=4"))
    assert request.slices == 2
    assert request_of(step("ici_fsdp_parallelism=8")).slices == 1
    with pytest.raises(ConfigError, match="an axis of -1 between slices"):
        request_of(step("dcn_data_parallelism=-1", "ici_fsdp_parallelism=-1"))


def test_slices_of_tpus_are_those_of_the_topology() -> None:
    request = request_of(step("dcn_data_parallelism=2", target="TPUv6e", devices=16))
    assert request.topology["topology_name"] == "v6e:2x4"
    assert request.topology["num_slices"] == request.slices == 2
    on_gpus = request_of(step("dcn_data_parallelism=2", "ici_fsdp_parallelism=4"))
    assert "num_slices" not in on_gpus.topology


@pytest.mark.parametrize(
    ("settings", "cluster", "message"),
    [
        (
            ("ici_fsdp_parallelism=-1",),
            "2x8xTPUv6e",
            "make one slice, and 2x8xTPUv6e has 2 slices; let them multiply to 2",
        ),
        (
            ("dcn_data_parallelism=4",),
            "64xTPUv6e",
            "dcn_data_parallelism=1, or give --cluster 4x16xTPUv6e",
        ),
    ],
)
def test_the_slices_of_a_step_are_those_of_its_cluster(
    settings: tuple[str, ...], cluster: str, message: str
) -> None:
    system = find_system(cluster)
    made = step(*settings, target="TPUv6e", devices=system.device_count)
    with pytest.raises(DeviceCountError) as caught:
        check_slices(made, system)
    assert message in caught.value.text(lambda name: f"--{name}")
    check_slices(step("dcn_data_parallelism=4"), find_system("8xH100_80GB"))


def test_slices_divide_the_devices() -> None:
    with pytest.raises(DeviceCountError, match="make 3 slices, which do not divide 8 devices; let"):
        step("dcn_data_parallelism=3")
    with pytest.raises(DeviceCountError, match="make 0 slices"):
        step("dcn_data_parallelism=-1", "ici_fsdp_parallelism=16")


def test_a_tpu_has_a_topology() -> None:
    request = request_of(step(target="TPUv6e", topology="2x4"))
    assert (request.kind, request.platform) == ("tpu", "tpu")
    assert request.topology["topology_name"] == "v6e:2x4"
    with pytest.raises(DeviceCountError):
        request_of(step(target="TPUv6e", devices=7))


def test_the_request_is_json() -> None:
    request = request_of(step("model_name=x"))
    assert json.loads(json.dumps(request.topology)) == request.topology


SMALL = (
    "base_num_decoder_layers=2",
    "base_emb_dim=256",
    "base_mlp_dim=512",
    "vocab_size=1024",
    "head_dim=64",
    "base_num_query_heads=8",
    "base_num_kv_heads=8",
    "max_target_length=512",
    "per_device_batch_size=1",
    "dataset_path=gs://not/needed",
    "tokenizer_path=/not/needed",
    "dataset_type=hf",
    "hf_path=not/needed",
)


def test_frames_of_hespas_are_left_out_of_a_program() -> None:
    text = f"""#loc1 = loc("{worker.__file__}":139:11 to :38)
#loc2 = loc("/env/maxtext/layers/decoders.py":12:4 to 13:8)
#loc3 = loc("{worker.__file__}":5:1)
"""
    assert (
        worker.without_own_frames(text)
        == """#loc1 = loc(unknown)
#loc2 = loc("/env/maxtext/layers/decoders.py":12:4 to 13:8)
#loc3 = loc(unknown)
"""
    )


@needs_maxtext
def test_maxtext_lowers_a_step_for_gpus_and_says_what_it_replaced() -> None:
    made = export_maxtext(step(*SMALL, "attention=cudnn_flash_te", "ici_fsdp_parallelism=8"))
    assert made.devices == 8
    assert b"__cudnn$fmhaSoftmaxBackward" in made.content
    assert "4096 tokens a step, mesh fsdp=8" in made.notes[0]
    assert any("cudnn_flash_jax" in note for note in made.notes)


@needs_maxtext
@pytest.mark.parametrize(("attention", "calls"), [("cudnn_flash_te", 2), ("cudnn_flash_jax", 3)])
def test_policies_keep_what_a_library_names(attention: str, calls: int) -> None:
    """MaxText names what JAX's function returns, not what its gradient reads."""
    policy = ("remat_policy=minimal_with_context", "ici_fsdp_parallelism=8")
    made = export_maxtext(step(*SMALL, f"attention={attention}", *policy))
    assert made.content.count(b"__cudnn$fmha") == calls


@needs_maxtext
@pytest.mark.parametrize("scans", ["true", "false"])
def test_the_policy_none_computes_everything_again_and_says_so(scans: str) -> None:
    """MaxText's configuration makes None of "none", and its layers compare with "none"."""

    def products(policy: str) -> int:
        settings = (f"remat_policy={policy}", f"scan_layers={scans}", "ici_fsdp_parallelism=8")
        made = export_maxtext(step(*SMALL, "attention=dot_product", *settings))
        assert any("everything again" in note for note in made.notes) == (policy == "none")
        return made.content.count(b"stablehlo.dot_general")

    assert products("none") == products("full")


@needs_maxtext
def test_what_attention_returns_is_kept_once() -> None:
    made = export_maxtext(
        step(
            *(each for each in SMALL if not each.startswith("base_num_kv_heads")),
            "base_num_kv_heads=4",
            "attention=cudnn_flash_te",
            "remat_policy=minimal_with_context",
            "ici_fsdp_parallelism=8",
        )
    )
    program = load_per_device(made.content, name="test").program
    forward, *_ = (op for op in all_ops(program) if op.kind == "while")
    # Of each of two layers: queries, and what attention returns.
    shapes = [getattr(value.type, "shape", None) for value in forward.results]
    assert shapes.count((2, 1, 512, 8, 64)) + shapes.count((2, 1, 8, 512, 64)) == 2


@needs_maxtext
def test_kernels_that_a_device_chooses_are_refused_with_those_that_can_be_lowered() -> None:
    settings = (*SMALL, "max_target_length=2048", "ici_fsdp_parallelism=8")
    kept = [each for each in settings if each != "max_target_length=512"]
    with pytest.raises(ConfigError, match=r"autoselected .* give attention=cudnn_flash_te"):
        export_maxtext(step(*kept))


@needs_maxtext
def test_a_program_does_not_say_where_hespas_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*SMALL, "attention=dot_product", "ici_fsdp_parallelism=8")
    here = export_maxtext(step(*settings)).content
    elsewhere = tmp_path / "elsewhere" / "maxtext_worker.py"
    elsewhere.parent.mkdir(parents=True)
    copyfile(str(worker.__file__), elsewhere)
    monkeypatch.setattr("hespas.sources.maxtext._WORKER", elsewhere)
    assert export_maxtext(step(*settings)).content == here
    assert b"maxtext_worker.py" not in here
    assert b"maxtext/layers" in here or b"maxtext/models" in here


@needs_maxtext
def test_fused_attention_over_a_divided_sequence_does_its_part_of_a_causal_mask() -> None:
    axes = ("attention=cudnn_flash_te", "ici_fsdp_parallelism=2", "ici_context_parallelism=4")
    made = export_maxtext(step(*SMALL, *axes))
    program = load_per_device(made.content, name="test").program
    found = {each for op in all_ops(program) for each in attentions(op)}
    # Each four devices have four sequences of 512 tokens, with eight heads.
    assert {each.scores for each in found} == {4 * 8 * (512 * 512 // 2) // 4}
    assert any("divided in 4" in note for note in made.notes)


@needs_maxtext
@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("model_nam=x", "no setting model_nam; did you mean model_name"),
        ("model_name=llama3.1-8x", "did you mean llama3.1-8b"),
        ("model_name=gemma4-e2b", "base.yml: gemma4-e2b requires scan_layers=False"),
        ("ici_fsdp_parallelism=7", "multiply to 7, and there are 8 devices inside a slice; let"),
        ("ici_fsdp_parallelism=3;ici_data_parallelism=-1", "multiply to 3.* divisors of 8"),
        ("ici_fsdp_parallelism=-1;ici_data_parallelism=-1", "2 axes of ici_ are -1; give all but"),
        (
            "ici_tensor_parallelism=8;base_num_kv_heads=4;base_num_query_heads=4",
            "divisible by 8, the combined size of the mesh axes",
        ),
    ],
)
def test_maxtext_refuses_in_one_line(setting: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong) as caught:
        export_maxtext(step(*setting.split(";")))
    assert "\n" not in str(caught.value)


@needs_maxtext
def test_an_axis_between_slices_behind_one_inside() -> None:
    """Axis data stands before fsdp in MaxText's mesh, and here only fsdp is between slices."""
    axes = ("ici_data_parallelism=4", "ici_fsdp_parallelism=1", "dcn_fsdp_parallelism=2")
    made = export_maxtext(step(*SMALL, "attention=cudnn_flash_te", "dcn_data_parallelism=1", *axes))
    whole = global_facts_of_source(made.content, name="x")
    assert [axis for axis in whole.mesh if axis[1] > 1] == [("data", 4), ("fsdp", 2)]
    assert whole.device_order == SWAPPED


def test_a_step_is_named_by_its_model() -> None:
    assert step("model_name=llama3.1-8b").name == "maxtext:llama3.1-8b"
    assert step().name == "maxtext:base.yml"


def test_the_key_is_of_all_that_decides_the_program(tmp_path: Path) -> None:
    python = stand_in(tmp_path)
    key = step_key(step("model_name=x", python=python))
    assert step_key(step("model_name=x", python=python)) == key
    assert step_key(step("model_name=y", python=python)) != key
    assert step_key(step("model_name=x", python=python, devices=4)) != key
    (newer := tmp_path / "newer").mkdir()
    assert step_key(step("model_name=x", python=stand_in(newer, jax="0.11"))) != key
    config = tmp_path / "own.yml"
    config.write_text("a: 1")
    own = step_key(step(config=str(config), python=python))
    config.write_text("a: 2")
    assert step_key(step(config=str(config), python=python)) != own
