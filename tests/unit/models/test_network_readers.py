"""Configurations of encoders and diffusion models are read whole, or refused by a field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.models.catalogue import model_named
from hespas.models.configuration import SHIPPED, configured

BERT = "google-bert/bert-large-uncased"
VIT = "google/vit-base-patch16-224"
UNET = "stable-diffusion-v1-5/stable-diffusion-v1-5"
UNET_XL = "stabilityai/stable-diffusion-xl-base-1.0"
FLUX = "black-forest-labs/FLUX.1-dev"


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        (BERT, {"position_embedding_type": "relative_key"}, "relative_key"),
        (BERT, {"num_attention_heads": 15}, "is not divided"),
        (BERT, {"is_decoder": True}, "is_decoder"),
        (BERT, {"hidden_act": "mish"}, "mish"),
        (BERT, {"rotary": True}, "rotary"),
        (BERT, {"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering"),
        (VIT, {"patch_size": 1000}, "patch_size = 1000"),
        (VIT, {"num_hidden_layers": 10**9}, "these are 1000000000 layers"),
        (FLUX, {"axes_dims_rope": [16, 56, 55]}, "axes_dims_rope"),
        (FLUX, {"patch_size": 2}, "patch_size"),
        (UNET, {"sample_size": 30}, "sample_size = 30 is halved 3 times"),
        (UNET_XL, {"projection_class_embeddings_input_dim": 256}, "input_dim is 256"),
        ("facebook/DiT-XL-2-256", {"norm_type": "layer_norm"}, "norm_type"),
        (UNET, {"down_block_types": ["DownBlock2D"] * 2}, "for 4 widths are not known"),
        (UNET, {"attention_head_dim": 7}, "attention_head_dim"),
        (UNET, {"transformer_layers_per_block": [1, 2]}, "there are 4 levels"),
        (UNET, {"act_fn": "mish"}, "act_fn"),
        (UNET, {"time_cond_proj_dim": 256}, "time_cond_proj_dim"),
        ("microsoft/resnet-50", {"hidden_sizes": [256, 512]}, "hidden_sizes"),
        ("microsoft/resnet-50", {"downsample_in_bottleneck": True}, "downsample_in_bottleneck"),
        ("mlcommons/dlrm-dcnv2", {"multi_hot_sizes": [1]}, "26 tables, and multi_hot_sizes 1"),
        ("mlcommons/dlrm-dcnv2", {"embedding_dim": 64}, "embedding_dim = 64"),
        ("google-t5/t5-base", {"feed_forward_proj": "gated-mish"}, "gated-mish"),
        ("openai/whisper-tiny", {"encoder_attention_heads": 7}, "encoder_attention_heads"),
    ],
)
def test_what_is_not_known_is_named(name: str, changed: dict[str, Any], said: str) -> None:
    values = json.loads((SHIPPED / f"{name}.json").read_bytes())
    with pytest.raises(ConfigError) as caught:
        configured({**values, **changed}, location="config.json", name="mine")
    assert said in str(caught.value)


def test_a_field_of_a_tower_is_named_too() -> None:
    values = json.loads((SHIPPED / "google" / "siglip-base-patch16-224.json").read_bytes())
    values["vision_config"]["windows"] = 4
    with pytest.raises(ConfigError, match="windows"):
        configured(values, location="config.json", name="mine")


def test_a_residual_network_is_the_one_of_the_zoo() -> None:
    settings = model_named("microsoft/resnet-50").settings
    assert settings.weights == model_named("resnet50").settings.weights
    assert not model_named("microsoft/resnet-50:inference").settings.train
