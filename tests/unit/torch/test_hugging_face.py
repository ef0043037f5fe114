"""Models of Hugging Face's transformers, by their configuration."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from hespas.compile.targets import find_target
from hespas.errors import ConfigError, DeviceCountError, ProgramError
from hespas.program.recorded import RecordedStep, decode_recorded
from hespas.sources.options import TorchOptions
from hespas.sources.torch_step import hugging_face_step, record_torch
from torch_steps import collectives, needs_torch, operations

pytestmark = [
    needs_torch,
    pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers"),
]

_CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
}
_PRODUCTS = 7
_OF_IMAGES = ("vit", "resnet")


def _recorded(directory: Path, *, step: str, devices: int = 1, **values: object) -> RecordedStep:
    (directory / "config.json").write_text(json.dumps(values or _CONFIG))
    found = hugging_face_step(
        f"hf:{directory}",
        {"batch": "2", **({} if values.get("model_type") in _OF_IMAGES else {"sequence": "64"})},
        TorchOptions(eager=True),
        step=step,
        devices=devices,
        target=find_target("H100_80GB"),
    )
    return decode_recorded(record_torch(found)[0])


def test_training_divides_the_layers_and_computes_them_again(tmp_path: Path) -> None:
    step = _recorded(tmp_path, step="train", devices=4)
    assert step.tokens == 4 * 2 * 64
    assert [call.kind for call in collectives(step)].count("reduce_scatter") == 3
    products = [call.phase for call in operations(step, "aten::mm")]
    assert products.count("forward") == 2 * _PRODUCTS + 1
    assert products.count("recompute") >= 2 * (_PRODUCTS - 1)


def test_decoding_reads_the_whole_cache(tmp_path: Path) -> None:
    step = _recorded(tmp_path, step="decode")
    assert step.tokens == 2
    attention = operations(step, "aten::_scaled_dot_product_")
    assert [call.inputs[1].shape[2] for call in attention] == [64, 64]
    assert len(operations(step, "aten::mm")) == 2 * _PRODUCTS + 1


def test_what_is_not_served_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceCountError, match="is of one GPU, and there are 2"):
        _recorded(tmp_path, step="prefill", devices=2)
    with pytest.raises(ProgramError, match="has no model_type 'unheard_of'"):
        _recorded(tmp_path, step="train", model_type="unheard_of")
    with pytest.raises(ProgramError, match="has no loss of input_ids, pixel_values, input_f"):
        _recorded(tmp_path, step="train", model_type="vit", architectures=["ViTModel"], **_LAYERS)
    with pytest.raises(ConfigError, match="is 64, and BertForMaskedLM has 32 positions"):
        _recorded(
            tmp_path,
            step="train",
            model_type="bert",
            architectures=["BertForMaskedLM"],
            max_position_embeddings=32,
            **_LAYERS,
        )


_LAYERS = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_OTHERS: dict[str, dict[str, object]] = {
    "weights that two modules share": {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        **_LAYERS,
    },
    "an encoder and a decoder": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "d_model": 64,
        "d_ff": 128,
        "num_layers": 2,
    },
    "images": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": 32,
        **_LAYERS,
    },
    "sound": {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "max_source_positions": 50,
        "vocab_size": 1000,
        "pad_token_id": 0,
    },
    "convolutions, which are not computed again": {
        "model_type": "resnet",
        "architectures": ["ResNetForImageClassification"],
        "embedding_size": 8,
        "hidden_sizes": [16, 32],
        "depths": [1, 1],
    },
    "attention that torch has no kernel for": {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        **_LAYERS,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_local_experts": 4,
        "vocab_size": 1000,
    },
}


@pytest.mark.parametrize("values", _OTHERS.values(), ids=_OTHERS)
def test_other_models_than_decoders_are_trained(tmp_path: Path, values: dict[str, object]) -> None:
    step = _recorded(tmp_path, step="train", devices=2, **values)
    assert {call.phase for call in operations(step)} >= {"forward", "backward"}
    has_text = values["model_type"] not in (*_OF_IMAGES, "whisper")
    assert step.tokens == (2 * 2 * 64 if has_text else None)
