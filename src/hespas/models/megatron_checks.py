"""Refuse arguments of Megatron-LM that contradict each other, or change what is not modelled.

Source: NVIDIA, Megatron-LM (core 0.15), ``validate_args`` of ``megatron/training/arguments.py``,
and the checks of ``TransformerConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hespas.errors import ConfigError, option
from hespas.models.fields import Fields
from hespas.models.megatron_file import DEFAULTS, is_yaml, spelled

_FSDP = f"weights are divided by {option('mesh')} fsdp=N of a model of the zoo"
_GRAPHS = f"kernels are launched one by one, unless {option('cuda_graphs')} is given"
_BATCH = "all steps have the global batch"
_ENCODER = "the model is a decoder alone"
_REFUSED: Mapping[str, str] = {
    "first_last_layers_bf16": "layers are all of one precision here",
    "use_torch_fsdp2": _FSDP,
    "use_megatron_fsdp": _FSDP,
    "use_custom_fsdp": _FSDP,
    "hybrid_override_pattern": "layers without attention are read from a config.json alone",
    "fp32_residual_connection": "residuals are of the type that is computed in",
    "distribute_saved_activations": "each device keeps what its layers save",
    "use_tp_pp_dp_mapping": "stages are the outermost groups of devices here",
    "hierarchical_context_parallel_sizes": "context parallelism has one level here",
    "optimizer_cpu_offload": "the optimiser's states are in the device's memory",
    "optimizer_offload_fraction": "the optimiser's states are in the device's memory",
    "enable_cuda_graph": _GRAPHS,
    "external_cuda_graph": _GRAPHS,
    "cuda_graph_impl": _GRAPHS,
    "rampup_batch_size": _BATCH,
    "encoder_num_layers": _ENCODER,
    "encoder_seq_length": _ENCODER,
    "decoder_seq_length": _ENCODER,
    "data_parallel_size": "it follows from the devices of the cluster",
    "num_distributed_optimizer_instances": "states are divided over all data-parallel devices",
}
"""Arguments that change what is computed and are not modelled, each with what is modelled."""

_NEEDED: Mapping[str, tuple[str, ...]] = {
    "num_query_groups": ("group_query_attention",),
    "overlap_param_gather": ("use_distributed_optimizer", "overlap_grad_reduce"),
    "tp_comm_overlap": ("sequence_parallel",),
    "fp8_recipe": ("fp8_format",),
    "fp8_param_gather": ("fp8_format",),
    "fp4_recipe": ("fp4_format",),
    "recompute_method": ("recompute_granularity",),
    "recompute_num_layers": ("recompute_granularity",),
    "recompute_modules": ("recompute_granularity",),
}
"""What an argument of a command line is refused or ignored without, by Megatron-LM itself."""

_EXCLUSIVE = (("bf16", "fp16"), ("swiglu", "squared_relu"))


def check_arguments(fields: Fields, path: Path) -> None:
    """Raise `ConfigError` for arguments that are not modelled or that contradict each other."""
    for name, why in _REFUSED.items():
        value = fields.values.get(name)
        fields.ignore(name)
        if value not in (None, False, DEFAULTS.get(name)):
            raise ConfigError(
                f"{spelled(name, path)} is not modelled: {why}",
                location=str(path),
                hint="drop it",
            )
    implementation = fields.text("transformer_impl", default="transformer_engine")
    fields.refuse(
        implementation == "local",
        "transformer_impl local is not modelled: kernels are those of Transformer Engine",
        "drop it",
    )
    experts = fields.given("num_experts", "num_moe_experts")
    fields.refuse(
        experts is None and fields.size("expert_model_parallel_size", default=1) > 1,
        "expert_model_parallel_size divides experts, and the model has none",
        "drop it, or give num_experts",
    )
    if not is_yaml(path):
        _check_line(fields, path)


def _check_line(fields: Fields, path: Path) -> None:
    """Refuse what Megatron-LM's own command line refuses or ignores."""

    def is_on(name: str) -> bool:
        return fields.values.get(name) not in (None, False)

    for one, other in _EXCLUSIVE:
        fields.refuse(
            is_on(one) and is_on(other),
            f"{spelled(one, path)} and {spelled(other, path)} are both given",
            "keep one",
        )
    for name, needed in _NEEDED.items():
        for other in needed:
            has_other = is_on(other) or (
                other == "recompute_granularity" and is_on("recompute_activations")
            )
            argument, missing = spelled(name, path), spelled(other, path)
            fields.refuse(
                is_on(name) and not has_other,
                f"{argument} has no effect in Megatron-LM without {missing}",
                f"add {missing}, or drop {argument}",
            )
    fields.refuse(
        is_on("num_experts")
        and fields.size("expert_model_parallel_size", default=1) > 1
        and not is_on("moe_token_dispatcher_type"),
        "without --moe-token-dispatcher-type Megatron-LM gathers the tokens of all devices "
        "(allgather), which is not modelled",
        "add --moe-token-dispatcher-type alltoall, or flex",
    )
    chunks = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
    stages = fields.size("pipeline_model_parallel_size", default=1)
    for name in chunks:
        fields.refuse(
            stages == 1 and is_on(name) and fields.values[name] != 1,
            f"{spelled(name, path)} divides stages, and there is one",
            "drop it, or give --pipeline-model-parallel-size",
        )
