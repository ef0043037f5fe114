"""Tokens that go to groups of experts, to experts over `tp`, and in 8 bits: values, what moves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import hespas
from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.program.devices import communication_ops, device_group_table
from hespas.program.program import Program, all_ops, shape_of
from hespas.program.scopes import Phase, read_scope
from hespas.program.types import TensorType, Type, size_bytes
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from small_models import LATENT, SMALL

_RUN = Path(__file__).parent / "run_groups_of_experts.py"
ROUTED = {
    **SMALL,
    **LATENT,
    "mesh": "expert=8",
    "experts": "32",
    "expert_mlp": "64",
    "sequence": "64",
    "attention": "unfused",
    "remat": "none",
    "scan": "true",
}
GROUPS = {"expert_groups": "4", "chosen_groups": "2"}


def test_values_and_gradients_are_those_of_one_device() -> None:
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, str(_RUN)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    assert max(found["groups"].values()) < 1e-6
    assert max(found["over tp"].values()) < 1e-6
    assert max(found["own"].values()) < 1e-6
    assert max(found["sorted"].values()) < 1e-6
    assert max(found["dropless"].values()) < 1e-6
    # Of 8 bits three are a number's fraction: rounding moves it by 1 / 16 at most.
    assert 0.001 < max(found["groups, f8"].values()) < 0.1


def _exchanged(**more: str) -> Counter[tuple[tuple[int, ...], str]]:
    """Return the bytes of all-to-alls by their first group and the type of what they send."""
    exported = export_model("deepseek-v3", ROUTED | more)
    program = load_source(partitioned(exported).content, name="deepseek-v3")
    found: Counter[tuple[tuple[int, ...], str]] = Counter()
    for op in communication_ops(program):
        if op.kind == "all_to_all":
            kind = op.results[0].type
            assert isinstance(kind, TensorType)
            first = device_group_table(op, program)[0]
            found[tuple(first), kind.element.name] += size_bytes(kind)
    return found


def test_a_token_crosses_once_to_each_group() -> None:
    """Of eight experts in two groups: two copies between groups, and eight inside of them."""
    all_, grouped = _exchanged(), _exchanged(**GROUPS)
    between, inside = (0, 2, 4, 6), (0, 1)
    assert {group for group, _ in all_} == {tuple(range(8))}
    assert {group for group, _ in grouped} == {between, inside}
    copies = all_[tuple(range(8)), "bf16"]
    assert grouped[inside, "bf16"] == copies
    assert grouped[between, "bf16"] == copies * 2 // 8


def test_a_dispatcher_with_all_to_alls_sorts_rows_in_kernels_of_its_own() -> None:
    """Behind the first of two all-to-alls, and before the second: forward and backward."""
    counts = [
        export_model("deepseek-v3", ROUTED | {"dispatcher": name}).content.count(
            b'"stablehlo.gather"'
        )
        for name in ("fused", "alltoall")
    ]
    assert counts[1] == counts[0] + 4


def test_experts_over_tp_are_whole_and_take_the_tokens_as_tp_divides_them() -> None:
    """Each device sends half as much as with divided experts, and nothing is summed over tp."""
    mesh = {"mesh": "expert=4,tp=2", "sequence_parallel": "true"}
    divided, whole = _exchanged(**mesh), _exchanged(**mesh, expert_axes="expert+tp")
    assert {group for group, _ in divided} == {(0, 2, 4, 6)}
    assert {group for group, _ in whole} == {tuple(range(8))}
    assert whole.total() == divided.total() // 2


def _decoding(**more: str) -> Program:
    """Return a decode step of a small model with experts, as a device runs it."""
    small = {
        "embedding": "64",
        "heads": "4",
        "kv_heads": "4",
        "head_size": "16",
        "layers": "2",
        "vocabulary": "256",
        "batch": "16",
        "context": "64",
        "attention": "unfused",
        "dropless": "true",
    }
    exported = export_model("mixtral-8x7b-decode", small | more)
    return load_source(partitioned(exported).content, name="decode")


def test_experts_of_inference_over_tp_are_whole_and_their_results_summed() -> None:
    """Half of the experts take half of the choices each; what moves is as with halves of all."""
    found: list[tuple[Counter[tuple[str, Type]], list[list[tuple[int, ...]]]]] = []
    for more in ({}, {"expert_axes": "tp"}):
        program = _decoding(mesh="tp=2", **more)
        moved = Counter((op.kind, op.results[0].type) for op in communication_ops(program))
        products = [
            [shape_of(value) for value in op.operands]
            for op in all_ops(program)
            if op.kind == "ragged_dot"
        ]
        found.append((moved, products))
    (moved, _), (moved_of_whole, products) = found
    assert moved == moved_of_whole
    assert products[0] == [(16, 64), (4, 64, 14336), (4,)]
    assert products[-1] == [(16, 14336), (4, 14336, 64), (4,)]


def test_whole_experts_stand_on_one_device_each() -> None:
    """The experts of two devices are all of the model's: each has its own, of whole width."""

    def held(**more: str) -> Counter[tuple[int, ...]]:
        shapes = [shape_of(argument) for argument in _decoding(**more).main.body.arguments]
        return Counter(shape for shape in shapes if 14336 in shape)

    alone = held(mesh="tp=1")
    own = held(mesh="tp=2", expert_axes="tp")
    assert alone == {(8, 64, 14336): 4, (8, 14336, 64): 2}
    assert own == {(4, 64, 14336): 4, (4, 14336, 64): 2}


def test_half_of_what_is_exchanged_has_8_bits() -> None:
    whole, small = _exchanged(), _exchanged(exchange_dtype="f8")
    everyone = tuple(range(8))
    assert small[everyone, "bf16"] == whole[everyone, "bf16"] // 2
    assert small[everyone, "f8E4M3FN"] == whole[everyone, "bf16"] // 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chosen_groups": "2"}, "chosen_groups = 2 of expert_groups = 1; choose fewer"),
        ({"expert_groups": "5"}, "32 experts are not divided by expert_groups = 5"),
        ({"expert_groups": "16"}, "8 devices along expert are not divided by expert_groups = 16"),
        ({"expert_groups": "8", "chosen_groups": "3"}, "is not divided by chosen_groups = 3"),
        ({"expert_groups": "8", "chosen_groups": "1"}, "8 experts are chosen in each group, which"),
        ({**GROUPS, "dropless": "true", "mesh": "data=1"}, "dropless products know no groups"),
        ({"exchange_dtype": "f8", "mesh": "data=1"}, "exchange_dtype = f8 has no effect"),
        ({"exchange_dtype": "f16"}, "known: same, f8"),
        ({"dispatcher": "alltoall", "mesh": "data=1"}, "dispatcher = alltoall has no effect"),
        ({"expert_axes": "context"}, "known: expert, tp, expert\\+tp"),
        (
            {"expert_axes": "expert+tp", "sequence_parallel": "true"},
            "give the mesh an axis tp, or drop expert_axes",
        ),
        (
            {"expert_axes": "expert+tp", "mesh": "expert=4,tp=2"},
            "give sequence_parallel=true in training",
        ),
        (
            {"expert_axes": "expert+tp", "sequence_parallel": "true", "mesh": "expert=16,tp=4"},
            "experts = 32 cannot be divided by expert=16,tp=4",
        ),
    ],
)
def test_groups_that_do_not_fit(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_named("deepseek-v3").step(ROUTED | options)


@pytest.mark.parametrize("more", [{}, {"dropless": "true"}], ids=str)
def test_what_the_experts_products_make_is_kept_as_that_of_other_layers(
    more: dict[str, str],
) -> None:
    sizes = {"layers": "2", "embedding": "512", "heads": "8", "kv_heads": "4", "mlp": "512"}
    found = hespas.predict(
        "mixtral-8x7b",
        cluster="4xH100_80GB",
        mesh="fsdp=4",
        sequence=1024,
        settings={**sizes, "expert_mlp": "512", "vocabulary": "1024", **more},
        fidelity="exported",
    )
    again = [
        op
        for op in all_ops(found.graph.program)
        if read_scope(op.scope).phase is Phase.RECOMPUTATION
        and "experts" in read_scope(op.scope).path
        and op.kind in {"dot_general", "ragged_dot"}
    ]
    assert not again
