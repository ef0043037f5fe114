"""The kernels of a framework by name and date, as training settings.

Each record says what differs from the kernels that a compiler or Transformer Engine would make, and
who says so. A step is predicted with them by ``--software NAME``; settings that are given beside it
stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option

ARGUMENTS_PREFIX = "megatron:"
"""What a file of Megatron-LM's arguments is named with."""


@frozen
class Software:
    """A framework at a date: ``settings`` of models, and the source of each.

    ``on_hopper`` are settings on Hopper alone, ``of_slow_experts`` those of models whose experts
    have biases or cut their activations off, ``of_scaled_rotation`` those of models whose rotation
    multiplies what it turns. ``runs_by_module`` says that no compiler joins the
    kernels of modules: PyTorch calls what a module has for a pass, and then the next one's.
    ``copies_shards`` says that weights are copied out of a gathered buffer, and gradients into one.
    ``scaled_whole`` are types of products whose operands are rounded by one scale each.
    """

    title: str
    settings: Mapping[str, str]
    sources: Mapping[str, str]
    on_hopper: Mapping[str, str] = field(default_factory=dict[str, str])
    of_slow_experts: Mapping[str, str] = field(default_factory=dict[str, str])
    of_scaled_rotation: Mapping[str, str] = field(default_factory=dict[str, str])
    runs_by_module: bool = False
    copies_shards: bool = False
    scaled_whole: frozenset[str] = frozenset()
    scaled_whole_on_hopper: frozenset[str] = frozenset()

    def settings_for(
        self, *, is_hopper: bool, has_slow_experts: bool = False, scales_rotation: bool = False
    ) -> dict[str, str]:
        """Return the settings of a model on a part."""
        return {
            **self.settings,
            **(self.on_hopper if is_hopper else {}),
            **(self.of_slow_experts if has_slow_experts else {}),
            **(self.of_scaled_rotation if scales_rotation else {}),
        }

    def scales_tensors(self, types: Iterable[str], *, is_hopper: bool) -> bool:
        """Return whether operands of products of some types are rounded by one scale each."""
        on_hopper = self.scaled_whole_on_hopper if is_hopper else frozenset[str]()
        return not (self.scaled_whole | on_hopper).isdisjoint(types)


_AUTOGRAD = (
    "pytorch/pytorch, derivatives.yaml: what each operation keeps is what its gradient reads; "
    "NVIDIA/TransformerEngine, what its modules save"
)
_EAGER_LOSS = (
    "pytorch/torchtitan@b5bcd76: the model's layers are compiled, the loss, "
    "torch.nn.functional.cross_entropy of float logits, is not"
)
_TITAN_LINEARS = (
    "torchtitan 0.1.0 of June 2025, models/llama3/model/model.py: wq, wk, wv, w1 and w3 are layers "
    "of their own, each rounded by torchao"
)
_OLD_ATTENTION = (
    "pytorch/pytorch 2.5 and before: scaled_dot_product_attention calls FlashAttention-2 on "
    "Hopper; cuDNN's goes first from 2.6 on"
)
SOFTWARE: Mapping[str, Software] = {
    "megatron": Software(
        title="Megatron-LM and Megatron-Bridge with Transformer Engine",
        settings={"remat": "elementwise", "same_rows": "joined"},
        of_slow_experts={"expert_kernels": "eager"},
        of_scaled_rotation={"rotary_kernels": "eager"},
        sources={
            "remat": _AUTOGRAD,
            "same_rows": "megatron-core 0.16.1, transformer/attention.py and transformer/mlp.py: "
            "linear_qkv, linear_fc1",
            "expert_kernels": "megatron-core 0.16.1, transformer/moe/experts.py and "
            "fusions/fused_bias_geglu.py: TEGroupedMLP adds biases, and activations are cut off, "
            "by operations of PyTorch",
            "rotary_kernels": "megatron-core 0.16.1, models/common/embeddings/rope_utils.py: "
            "apply_rotary_pos_emb calls Transformer Engine's kernel for mscale of 1 alone",
        },
        runs_by_module=True,
        # Recipes of Megatron-Bridge 0.6.2: fp8_cs on Hopper, and fp8_mx or nvfp4 on Blackwell.
        scaled_whole=frozenset({"f4"}),
        scaled_whole_on_hopper=frozenset({"f8"}),
    ),
    "torchtitan-2024": Software(
        title="torchtitan of 2024, compiled by layer",
        settings={"remat": "alternate_products", "loss": "eager", "same_rows": "apart"},
        on_hopper={"attention": "flash2"},
        sources={
            "remat": "pytorch/torchtitan@b5bcd76, torchtitan/parallelisms/parallelize_llama.py: "
            "selective checkpointing by operation",
            "loss": _EAGER_LOSS,
            "same_rows": _TITAN_LINEARS,
            "attention": _OLD_ATTENTION,
        },
        copies_shards=True,
        scaled_whole=frozenset({"f8"}),
    ),
    "torchtitan-2024-eager": Software(
        title="torchtitan of 2024, not compiled",
        settings={
            "remat": "alternate_products",
            "loss": "eager",
            "eager": "true",
            "same_rows": "apart",
        },
        on_hopper={"attention": "flash2"},
        sources={
            "remat": "as torchtitan-2024",
            "loss": _EAGER_LOSS,
            "same_rows": _TITAN_LINEARS,
            "eager": "pytorch/pytorch: a kernel for each operation without torch.compile",
            "attention": _OLD_ATTENTION,
        },
        runs_by_module=True,
        copies_shards=True,
        scaled_whole=frozenset({"f8"}),
    ),
    "torchtitan-2025": Software(
        title="torchtitan of 2025, compiled by layer",
        settings={"remat": "alternate_products", "same_rows": "apart"},
        on_hopper={"attention": "flash2"},
        sources={
            "remat": "torchtitan 0.1.0 of June 2025, models/llama3/infra/parallelize.py: "
            "_apply_ac_to_transformer_block; components/loss.py compiles the loss",
            "same_rows": _TITAN_LINEARS,
            "attention": "torchtitan 0.1.0 of June 2025, models/attention.py: "
            "FlashAttention goes first but on B200, whatever PyTorch prefers",
        },
        copies_shards=True,
        scaled_whole=frozenset({"f8"}),
    ),
    "torchtitan": Software(
        title="torchtitan from 2026 on, compiled by layer",
        settings={"remat": "alternate_products", "same_rows": "apart"},
        sources={
            "same_rows": _TITAN_LINEARS,
            "remat": "torchtitan 0.3.0 of September 2026, distributed/activation_checkpoint.py: "
            "SelectiveAC; components/loss.py compiles the loss, and models/common/attention.py has "
            "cuDNN's attention go first",
        },
        copies_shards=True,
        scaled_whole=frozenset({"f8"}),
    ),
    "llm-foundry-2023": Software(
        title="MosaicML's llm-foundry and Composer of 2023",
        settings={
            "remat": "elementwise",
            "loss": "eager",
            "eager": "true",
            "attention": "flash_triton",
            "same_rows": "joined",
        },
        sources={
            "remat": _AUTOGRAD,
            "loss": "mosaicml/llm-foundry, ComposerMPTCausalLM: CrossEntropyLoss of PyTorch",
            "eager": "mosaicml/llm-foundry of 2023: nothing is compiled",
            "same_rows": "mosaicml/mpt-7b, tensors transformer.blocks.*.attn.Wqkv",
            "attention": "mosaicml/llm-foundry of 2023, MPTConfig: attn_impl triton by default",
        },
        runs_by_module=True,
    ),
}
"""Frameworks by name."""


def software_named(name: str) -> Software:
    """Return a framework; `ConfigError` where there is none of that name.

    >>> software_named("torchtitan-2024").settings_for(is_hopper=True)["attention"]
    'flash2'
    """
    if name not in SOFTWARE:
        raise ConfigError(f"{option('software')} is {name!r}", hint=suggestion(name, SOFTWARE))
    return SOFTWARE[name]
