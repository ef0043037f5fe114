"""Arguments of Megatron-LM: what they mean, and typical mistakes in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.models.catalogue import model_named
from hespas.models.megatron import Arguments, read_arguments
from hespas.models.parameters import parameters
from hespas.models.runs import Training

LLAMA = """#!/bin/bash
# Llama 3 8B
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=${TP:-2}
MODEL=(
    --num-layers 32 --hidden-size 4096  # the width
    --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups=8
    --seq-length 8192 --swiglu --normalization RMSNorm
    --position-embedding-type rope --rotary-base 500000
    --untie-embeddings-and-output-weights --disable-bias-linear
    --vocab-size 128256
    --attention-dropout 0.0 --hidden-dropout 0.0
)
torchrun --nproc_per_node 8 pretrain_gpt.py \\
    "${MODEL[@]}" \\
    --tensor-model-parallel-size $TP --sequence-parallel \\
    --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 \\
    --micro-batch-size 1 --global-batch-size 64 --bf16 \\
    --use-distributed-optimizer --overlap-grad-reduce \\
    --save /checkpoints --log-interval 10 --lr 6e-5 --seed 1
"""
WHOLE = "--expert-tensor-parallel-size 1"
EXPERTS = "--num-experts 64 --moe-token-dispatcher-type flex"


def read(directory: Path, text: str, name: str = "args.sh") -> Arguments:
    path = directory / name
    path.write_text(text)
    return read_arguments(path)


def llama(directory: Path, *more: str, without: str = "") -> Arguments:
    text = LLAMA.replace(without, "") if without else LLAMA
    return read(directory, text + " ".join(more), f"{abs(hash((more, without)))}.sh")


def test_the_model_is_the_one_that_its_configuration_describes(tmp_path: Path) -> None:
    found = llama(tmp_path).model
    shipped = model_named("meta-llama/Meta-Llama-3-8B").settings
    assert found.sizes_of_layers == shipped.sizes_of_layers
    assert found.style == shipped.style
    assert parameters(found) == parameters(shipped)


@pytest.mark.parametrize(("more", "window"), [("", 0), ("--window-size 1023,0", 1024)])
@pytest.mark.parametrize("experts", ["", EXPERTS])
def test_layers_see_a_window_of_tokens(
    tmp_path: Path, more: str, window: int, experts: str
) -> None:
    kinds = llama(tmp_path, more, experts).model.kinds
    assert {kind.window for kind in kinds} == {window}
    assert len(kinds) == 32


def test_the_layout_has_what_the_arguments_say(tmp_path: Path) -> None:
    layout = llama(tmp_path).layout
    assert (layout.tensor, layout.stages, layout.chunks) == (2, 2, 4)
    assert (layout.global_batch, layout.micro_batch, layout.sequence) == (64, 1, 8192)
    assert layout.divides_states
    assert layout.sequence_parallel
    assert (layout.remat, layout.dtype, layout.product_dtype) == ("elementwise", "bf16", "same")
    assert layout.overlap["gradients"]
    assert not layout.overlap["parameters"]
    assert not layout.overlap["tp"]


def test_adapters_are_those_of_the_section_peft(tmp_path: Path) -> None:
    text = """
model:
  num_layers: 4
  hidden_size: 256
  num_attention_heads: 8
  num_query_groups: 8
  vocab_size: 1024
  seq_length: 128
  attention_dropout: 0.0
  hidden_dropout: 0.0
peft:
  _target_: megatron.bridge.peft.lora.LoRA
  dim: 16
  alpha: 32
  target_modules: [linear_qkv, linear_proj]
"""
    run = read(tmp_path, text, "lora.yaml").model.run
    assert isinstance(run, Training)
    assert (run.lora_rank, run.lora_modules) == (16, "linear_proj+linear_qkv")
    plain = text.replace("  dim: 16\n", "").replace(
        "  target_modules: [linear_qkv, linear_proj]", ""
    )
    run = read(tmp_path, plain, "default.yaml").model.run
    assert isinstance(run, Training)
    assert (run.lora_rank, run.lora_modules) == (32, "all")
    for old, new, message in (
        ("dim: 16", "dim: 0", "lora_dim is 0"),
        ("linear_qkv,", "in_proj,", "adapters stand beside in_proj"),
        ("lora.LoRA", "dora.DoRA", "DoRA"),
        ("alpha: 32", "normalize_moe_lora: true", "normalize_moe_lora"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(tmp_path, text.replace(old, new), f"{new[:4]}.yaml")


def test_fields_of_megatron_bridge_say_the_same(tmp_path: Path) -> None:
    text = """
model:
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  seq_length: 8192
  gated_linear_unit: true
  normalization: RMSNorm
  position_embedding_type: rope
  rotary_base: 500000
  share_embeddings_and_output_weights: false
  add_bias_linear: false
  vocab_size: 128256
  attention_dropout: 0.0
  hidden_dropout: 0.0
  tensor_model_parallel_size: 2
  sequence_parallel: true
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 4
train: {global_batch_size: 64, micro_batch_size: 1, train_iters: 10}
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true}
mixed_precision: {bf16: true}
checkpoint: {save: /checkpoints, anything: 1}
"""
    bridge, shell = read(tmp_path, text, "recipe.yaml"), llama(tmp_path)
    assert bridge.model == shell.model
    assert bridge.layout == shell.layout


def test_experts_and_latent_vectors_are_read(tmp_path: Path) -> None:
    found = llama(
        tmp_path,
        "--num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408",
        "--moe-shared-expert-intermediate-size 2816 --moe-router-score-function sigmoid",
        "--moe-layer-freq ([0]*1+[1]*31) --expert-model-parallel-size 4",
        "--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --v-head-dim 128",
        "--moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 1e-3",
    )
    routing, latent = found.model.routing, found.model.latent
    assert routing is not None
    assert (routing.experts, routing.chosen, routing.gate) == (64, 6, "sigmoid")
    assert [kind.is_routed for kind in found.model.kinds][:3] == [False, True, True]
    assert latent is not None
    assert (latent.kv_rank, latent.rope_size) == (512, 64)
    assert found.layout.experts == 4
    assert routing.dispatcher == "alltoall"


@pytest.mark.parametrize(
    ("more", "axis", "axes"),
    [
        ("--expert-model-parallel-size 4", 4, "expert"),
        (f"--expert-model-parallel-size 4 {WHOLE}", 2, "expert+tp"),
        (f"--expert-model-parallel-size 2 {WHOLE}", 1, "expert+tp"),
        ("--expert-model-parallel-size 8 --context-parallel-size 4", 2, "expert+context"),
        (
            f"--expert-model-parallel-size 8 {WHOLE} --context-parallel-size 4",
            1,
            "expert+context+tp",
        ),
        ("", 1, "expert"),
    ],
)
def test_experts_lie_on_devices_as_megatron_core_numbers_them(
    tmp_path: Path, more: str, axis: int, axes: str
) -> None:
    layout = llama(tmp_path, EXPERTS, more).layout
    assert (layout.experts, layout.expert_axes) == (axis, axes)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--expert-tensor-parallel-size 1", "divided by 1 and all else by 2 tensor-parallel"),
        (
            "--expert-model-parallel-size 4 --expert-tensor-parallel-size 4",
            "divided by 4 and all else by 2 tensor-parallel",
        ),
        (
            "--expert-model-parallel-size 3 --expert-tensor-parallel-size 1",
            "divides the 2 devices of tp",
        ),
        (
            "--expert-model-parallel-size 2 --context-parallel-size 4",
            "divides the 4 devices of context.*multiple of 4",
        ),
    ],
)
def test_experts_on_a_part_of_a_group_are_refused(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        llama(tmp_path, EXPERTS, more)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            "whole",
        ),
        ("--recompute-granularity selective", "core_attention"),
        ("--recompute-activations", "core_attention"),
        (
            "--recompute-granularity selective --recompute-modules moe_act layernorm",
            "layernorm+moe_act",
        ),
        ("--recompute-granularity selective --recompute-modules layernorm", "layernorm"),
        ("--recompute-granularity selective --recompute-modules mlp core_attn", "core_attn+mlp"),
    ],
)
def test_recomputation_is_a_policy(tmp_path: Path, more: str, expected: str) -> None:
    assert llama(tmp_path, more).layout.remat == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--fp8-format hybrid", "f8"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "f8"),
        ("--fp4-format e2m1 --fp4-recipe nvfp4", "f4"),
    ],
)
def test_products_in_few_bits_are_read(tmp_path: Path, more: str, expected: str) -> None:
    assert llama(tmp_path, more).layout.product_dtype == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [("", "same"), ("--grad-reduce-in-bf16", "bf16")],
)
def test_gradients_are_summed_in_f32_unless_it_is_said(
    tmp_path: Path, more: str, expected: str
) -> None:
    assert llama(tmp_path, more).layout.gradient_dtype == expected


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("Et*5|t*9|t*9|t*9L", (5, 9, 9, 9)),
        ("E,t,t|(t*10|)*2,t*10,m,L", (2, 10, 10, 10)),
        ("Et*16|t*16mL", (16, 16)),
    ],
)
def test_the_layout_of_a_pipeline_lists_layers(
    tmp_path: Path, layout: str, expected: tuple[int, ...]
) -> None:
    more = f"--pipeline-model-parallel-layout '{layout}'"
    made = llama(tmp_path, more, without="--num-layers-per-virtual-pipeline-stage 4 ").layout
    assert made.stage_layers == expected
    assert made.chunks == len(expected) // 2


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("Et|x|L", "write it as in"),
        ("Et*999999|L", "write it as in"),
        ("Et*32|L", "1 of them without a layer"),
        ("Et*16|t*8|t*8L", "lists 3 parts for 2 stages"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(tmp_path: Path, layout: str, message: str) -> None:
    more = f"--pipeline-model-parallel-layout '{layout}'"
    with pytest.raises(ConfigError, match=message):
        llama(tmp_path, more, without="--num-layers-per-virtual-pipeline-stage 4 ")


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA).layout.tensor == 2
    assert read(tmp_path, LLAMA.replace("TP:-2", "TP:-16")).layout.tensor == 16


def test_an_argument_with_megatrons_own_default_changes_nothing(tmp_path: Path) -> None:
    assert (
        llama(tmp_path, "--softmax-type vanilla --decoupled-lr 5e-4").model == llama(tmp_path).model
    )
    with pytest.raises(ConfigError, match=r"not known.*--softmax-type"):
        llama(tmp_path, "--softmax-type learnable")


def test_biases_of_latent_attention_are_refused(tmp_path: Path) -> None:
    more = "--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --v-head-dim 128"
    model = llama(tmp_path, more, without="--disable-bias-linear").model
    with pytest.raises(ConfigError, match="latent attention has no biases here"):
        model.check()


def test_a_stage_has_fewer_layers_beside_the_embedding(tmp_path: Path) -> None:
    layout = llama(
        tmp_path,
        "--num-layers 30",
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
        without="--num-layers 32",
    ).layout
    assert layout.chunks == 4
    assert layout.stage_layers == (3, 4, 4, 4, 4, 4, 4, 3)


def test_what_is_not_modelled_of_it_is_said(tmp_path: Path) -> None:
    notes = llama(tmp_path, "--no-rope-fusion", without="--hidden-dropout 0.0").notes
    assert notes == (
        "kernels are fused all the same, without regard to --no-rope-fusion",
        "dropout is left out",
    )


@pytest.mark.parametrize(
    ("more", "without", "parts"),
    [
        ("--tensor-parallel 2", "", ("not known", "--tensor-parallel", "take out")),
        ("--tensor-model-parallel-siz 2", "", ("did you mean --tensor-model-parallel-size?",)),
        ("--foo 1 --bar", "", ("2 arguments are not known", "--foo, --bar")),
        ("--hidden-size 5120", "", ("--hidden-size is given twice, as 4096 and 5120",)),
        ("--global-batch-size", "--global-batch-size 64", ("global_batch_size is true",)),
        ("--seq-length $SEQ", "--seq-length 8192", ("--seq-length is $SEQ", "write SEQ=...")),
        ("--fp4-format e2m1 --fp4-recipe mxfp4", "", ("fp4_recipe is 'mxfp4'", "'nvfp4'")),
        ("--optimizer sgd", "", ("optimizer is 'sgd'", "changes what is computed")),
        (
            "--recompute-granularity selective --recompute-modules shared_experts",
            "",
            ("recompute_modules",),
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
            "",
            ("recompute_method block",),
        ),
        ("", "--vocab-size 128256", ("the vocabulary is not said", "--vocab-size")),
        ("", "--num-layers 32", ("num_layers is missing",)),
        ("--hidden-siz 1", "--hidden-size 4096", ("is hidden_siz meant to be hidden_size?",)),
        ("--num-virtual-stages-per-pipeline-rank 4", "", ("as a number and by their layers",)),
        (
            "--num-layers-per-virtual-pipeline-stage 5",
            "--num-layers-per-virtual-pipeline-stage 4",
            ("num_layers = 32 is not divided into 2 stages of chunks of 5",),
        ),
        ("--num-experts 8 --moe-layer-freq [1]*4", "", ("names 4 layers, and num_layers is 32",)),
        ("--position-embedding-type relative", "--position-embedding-type rope", ("relative",)),
        ("--save '/a", "", ("no line of a shell",)),
    ],
)
def test_typical_mistakes_are_named(
    tmp_path: Path, more: str, without: str, parts: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        llama(tmp_path, more, without=without)
    text = f"{refused.value.location} {refused.value}"
    assert all(part in text for part in parts), text
    assert ".sh" in text


def test_a_file_without_arguments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no arguments"):
        read(tmp_path, "echo nothing\n")


def test_a_model_by_its_arguments_is_a_training_step(tmp_path: Path) -> None:
    path = llama(tmp_path).path
    model = model_named(f"megatron:{path}")
    assert isinstance(model.settings.run, Training)
    assert "8.030 B parameters" in model.summary


@pytest.mark.parametrize(
    ("more", "without", "complaint"),
    [
        ("--fp16", "", "--bf16 and --fp16 are both given"),
        ("--squared-relu", "", "--swiglu and --squared-relu are both given"),
        ("", "--group-query-attention", "--num-query-groups has no effect in Megatron-LM without"),
        (
            "--fp8-recipe mxfp8",
            "",
            "--fp8-recipe has no effect in Megatron-LM without --fp8-format",
        ),
        ("--recompute-modules mlp", "", "without --recompute-granularity"),
        ("--overlap-param-gather", "--use-distributed-optimizer", "--use-distributed-optimizer"),
        ("--overlap-param-gather", "--overlap-grad-reduce", "without --overlap-grad-reduce"),
        ("--tp-comm-overlap", "--sequence-parallel", "without --sequence-parallel"),
        ("--expert-model-parallel-size 2", "", "divides experts, and the model has none"),
        ("--num-experts 8 --expert-model-parallel-size 2", "", "allgather.*type alltoall, or flex"),
        ("", "--pipeline-model-parallel-size 2", "divides stages, and there is one"),
        ("--distribute-saved-activations", "", "is not modelled: each device keeps"),
        ("--transformer-impl local", "", "transformer_impl local is not modelled"),
        ("--use-tp-pp-dp-mapping", "", "is not modelled: stages are the outermost"),
        ("--rampup-batch-size 32 32 1000", "", "is not modelled: all steps have the global batch"),
        ("--fp32-residual-connection", "", "is not modelled: residuals are of the type"),
        ("--data-parallel-size 8", "", "is not modelled: it follows from the devices"),
        ("--cp-comm-type a2a", "", "cp_comm_type is 'a2a'"),
        ("--num-experts 8 --moe-expert-capacity-factor 0", "", "capacity_factor is 0"),
        ("--decoder-first-pipeline-num-layers 12", "", "give num_virtual_stages_per_pipeline_rank"),
    ],
)
def test_what_megatron_refuses_or_ignores_and_what_is_not_modelled_is_refused(
    tmp_path: Path, more: str, without: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        llama(tmp_path, more, without=without)


def test_one_group_of_queries_is_the_default_of_a_command_line(tmp_path: Path) -> None:
    model = llama(tmp_path, without="--num-query-groups=8").model
    assert model.sizes_of_layers.kv_heads == 1


def test_a_negative_capacity_drops_no_token(tmp_path: Path) -> None:
    none, negative = (
        llama(tmp_path, "--num-experts 8", more).model.routing
        for more in ("", "--moe-expert-capacity-factor -1")
    )
    assert negative == none


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--decoder-first-pipeline-num-layers 14 --decoder-last-pipeline-num-layers 18", (14, 18)),
        ("--decoder-first-pipeline-num-layers 12", (12, 20)),
        (
            "--decoder-first-pipeline-num-layers 12 --num-virtual-stages-per-pipeline-rank 4",
            (3, 5, 3, 5, 3, 5, 3, 5),
        ),
        (
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            (16, 16),
        ),
    ],
)
def test_stages_have_the_layers_that_megatron_core_gives_them(
    tmp_path: Path, more: str, expected: tuple[int, ...]
) -> None:
    """The layers of a stage are divided over its chunks."""
    chunk = "--num-layers-per-virtual-pipeline-stage 4 "
    assert llama(tmp_path, more, without=chunk).layout.stage_layers == expected


def test_messages_that_do_not_overlap_need_no_chunks(tmp_path: Path) -> None:
    chunk = "--num-layers-per-virtual-pipeline-stage 4 "
    layout = llama(tmp_path, "--no-overlap-p2p-communication", without=chunk).layout
    assert not layout.overlap["messages"]


def test_gradients_of_f16_are_summed_in_f16_unless_it_is_said(tmp_path: Path) -> None:
    plain, in_f32 = (
        llama(tmp_path, "--fp16", more, without="--bf16").layout.gradient_dtype
        for more in ("", "--accumulate-allreduce-grads-in-fp32")
    )
    assert (plain, in_f32) == ("f16", "same")


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ("--context-parallel-size 2", "round a ring, which is slower here"),
        ("--context-parallel-size 2 --cp-comm-type all_gather", None),
        ("--fp8-format hybrid --fp8-param-gather", "weights are gathered in 16 bits"),
    ],
)
def test_what_is_gathered_otherwise_is_said(tmp_path: Path, more: str, note: str | None) -> None:
    notes = llama(tmp_path, more).notes
    assert any(note in each for each in notes) if note else not notes


def bridge(directory: Path, *more: str) -> Arguments:
    model = (
        "num_layers: 4, hidden_size: 4096, num_attention_heads: 32, vocab_size: 128250, "
        "activation_func: {_target_: torch.nn.functional.silu, _call_: false, _partial_: true}, "
        "gated_linear_unit: true, bf16: true, seq_length: 8192"
    )
    lines = [f"model: {{_target_: megatron.bridge.Provider, {', '.join([model, *more[:1]])}}}"]
    return read(directory, "\n".join([*lines, *more[1:]]) + "\n", "recipe.yaml")


def test_functions_and_types_of_a_recipe_are_names(tmp_path: Path) -> None:
    typed = "params_dtype: {_target_: torch.bfloat16, _call_: false}, should_pad_vocab: false"
    found = bridge(tmp_path, typed, "dataset: {seq_length: 8192, num_workers: 8}")
    assert found.layout.dtype == "bf16"
    assert found.model.style.activation == "silu"
    assert found.model.sizes_of_layers.vocabulary == 128250


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("add_qkv_bias: false", "dataset: {seq_length: 4096}"), "seq_length is 8192 in"),
        (("add_qkv_bias: false", "ddp: {grad_reduce_in_fp32: true}",
          "mixed_precision: {grad_reduce_in_fp32: false}"), "grad_reduce_in_fp32 is True in one"),
        (("params_dtype: torch.float32",), "params_dtype is float32, and the run's type is bf16"),
        (("fp8: hybrid, fp8_wgrad: false",), "fp8_wgrad is False"),
    ],
)  # fmt: skip
def test_contradictions_of_a_recipe_are_refused(
    tmp_path: Path, more: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        bridge(tmp_path, *more)


def test_sums_of_gradients_in_kernels_of_their_own_are_read_by_both_names(tmp_path: Path) -> None:
    assert bridge(tmp_path).layout.overlap["accumulation"]
    assert not bridge(tmp_path, "gradient_accumulation_fusion: false").layout.overlap[
        "accumulation"
    ]
    assert not llama(tmp_path, "--no-gradient-accumulation-fusion").layout.overlap["accumulation"]


def test_experts_have_the_biases_of_other_layers(tmp_path: Path) -> None:
    experts = "num_moe_experts: 4"
    with_biases = bridge(tmp_path, experts).model.routing
    without = bridge(tmp_path, f"{experts}, add_bias_linear: false").model.routing
    assert with_biases is not None
    assert without is not None
    assert with_biases.style.biases
    assert not without.style.biases


def test_what_a_recipe_of_8_bits_leaves_out_is_said(tmp_path: Path) -> None:
    found = llama(tmp_path, "--fp8-format hybrid --fp8-recipe blockwise --num-experts 8")
    assert any("without regard to fp8_recipe blockwise" in note for note in found.notes)
    assert any("as with --moe-grouped-gemm" in note for note in found.notes)


def test_a_model_without_positions_has_no_table_of_them(tmp_path: Path) -> None:
    without = "--position-embedding-type rope --rotary-base 500000"
    assert llama(tmp_path, without=without).model.style.learned_positions == 8192
    none = llama(tmp_path, "--no-position-embedding", without=without)
    assert none.model.style.learned_positions == 0


def test_a_script_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert llama(tmp_path).model == read(tmp_path, f"\ufeff{LLAMA[12:]}", "bom.sh").model
