"""Write the packaged table of published steps, src/hespas/configs/published/every_step.csv.

    python validation/published_rows.py --facts DIRECTORY --maxtext PACKAGE

``--facts`` is the directory of the collected facts (``jax_training_steps.csv`` and others beside
it), and ``--maxtext`` that of MaxText's package, whose README files hold throughputs of TPUs and
whose scripts hold the settings and flags with which they were reached. Throughputs in TFLOP/s
become times by MaxText's own count of a step's FLOPs; when those pages were written, it counted
attention in full, causal or not.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hespas.compile.recipe import parse_recipe
from hespas.evidence.validate.measurements import COLUMNS, TABLE

Cells = dict[Any, str]

_LLAMA2 = "model_name=llama2-7b;attention=cudnn_flash_te;max_target_length=4096"
_V6E = (
    "attention=flash;use_iota_embed=True;remat_policy=custom;decoder_layer_input=offload;"
    "out_proj=offload;query_proj=offload;key_proj=offload;value_proj=offload;sa_block_q=2048;"
    "sa_block_kv=2048;sa_block_kv_compute=2048;sa_block_q_dkv=2048;sa_block_kv_dkv=2048;"
    "sa_block_kv_dkv_compute=2048;sa_use_fused_bwd_kernel=True;ici_fsdp_parallelism=-1"
)
_BATCH_NOTE = "the batch is that of the published tokens of a step, the rest the recipe's for 8B"
_PAX_REMAT = {
    "gpt3-126M": "remat_policy=none;scan_layers=false",
    "gpt3-5B": "remat_policy=minimal",
    "llama2-7b": "remat_policy=minimal_flash",
}
"""What Pax computes again: of GPT-3 as paxml 1.4.0 has it (contrib/gpu/scripts_gpu/configs.py: 126M
has no repeated layer and keeps everything, 5B keeps products without batch dimensions)."""
_PAX_NOTE = "Pax's step, lowered by MaxText with the same sizes; what it computes again is {remat}"
_AGAIN = (
    "MaxText, which lowers Pax's steps here, computes everything again with remat_policy=none: the "
    "published step does not"
)
_MEGATRON_NOTE = "the zoo's model by the schedule of Megatron-LM, what can be hidden hidden"
_GPT = (
    "model_name=gpt3-6b;override_model_config=true;max_target_length=2048;trainable_position_size"
    "=2048;per_device_batch_size={batch};base_emb_dim={emb};base_num_query_heads={heads};"
    "base_num_kv_heads={heads};base_mlp_dim={mlp};base_num_decoder_layers={layers};"
    "head_dim={head};vocab_size={vocab};attention={attention};{mesh}"
)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--facts", type=Path, required=True)
    parser.add_argument("--maxtext", type=Path, required=True)
    given = parser.parse_args()
    rows = [
        *_four_gpus(given.facts),
        *_gpu_recipes(),
        *_a3(given.maxtext / "configs" / "gpu" / "a3" / "llama_2_7b"),
        *_pax(given.facts),
        *_tpu_v3(given.facts),
        *_tpu_pages(given.maxtext / "configs" / "tpu"),
        *_trillium(given.facts),
        *_ironwood(given.facts),
        *_mlperf(given.facts),
    ]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{TABLE}: {len(rows)} steps")


def _facts(file: Path) -> list[Cells]:
    with file.open(encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def _four_gpus(facts: Path) -> Iterator[Cells]:
    """Yield the steps on four GPUs: those of `hespas validate`, whose table is beside this one."""
    del facts
    for each in _facts(TABLE.with_name("steps.csv")):
        family = "resnet" if each["workload"].startswith("resnet") else "llama3-like (MaxText)"
        yield {
            **each,
            "family": family,
            "framework_year": "2025",
            "source": "the documented comparison with measured steps; times rounded to 10 ms",
        }


def _gpu_recipes() -> Iterator[Cells]:
    source = "AI-Hypercomputer/gpu-recipes, MaxText, 2025"
    yield {
        "family": "llama3.1-70b (MaxText)",
        "workload": "maxtext:base.yml",
        "options": "model_name=llama3.1-70b;attention=cudnn_flash_te;per_device_batch_size=2;"
        "max_target_length=8192;remat_policy=save_dot_with_context_except_mlp;"
        "dcn_data_parallelism=2;dcn_fsdp_parallelism=16;ici_fsdp_parallelism=8",
        "system": "256xH200_141GB",
        "framework_year": "2025",
        "step_s": "15.516",
        "source": source,
    }
    yield {
        "family": "llama3.1-70b fp8 (MaxText)",
        "workload": "maxtext:base.yml",
        "node": "B200_180GB",
        "devices": "256",
        "system": "256xB200_180GB",
        "framework_year": "2025",
        "step_s": "20.935",
        "missing": "the recipe's batch and settings are not at hand",
        "source": source,
    }
    yield {
        "family": "llama2-7b (MaxText)",
        "workload": "maxtext:base.yml",
        "options": f"{_LLAMA2};per_device_batch_size=2;remat_policy=minimal_flash;"
        "ici_fsdp_parallelism=8",
        "system": "8xH100_80GB",
        "framework_year": "2024",
        "step_s": "0.721",
        "source": "NVIDIA/JAX-Toolbox, MaxText, 2024",
        "note": "the batch is taken to be two sequences a GPU, as in the step on 16 GPUs",
    }


def _training_steps(facts: Path, source: str) -> list[Cells]:
    every = _facts(facts / "jax_training_steps.csv")
    return [each for each in every if source in each["source"]]


_A3_CELL = re.compile(r"\|\s*(\d+)x A3 \(h100-80gb-8\)\s*\|\s*(\d+)\s*\|")
_A3_SOURCE = "AI-Hypercomputer/maxtext@e591f30 src/maxtext/configs/gpu/a3/llama_2_7b"
_NOT_OF_TODAY = ("xla_dump_to", "xla_gpu_pipeline_")
"""Flags that decide no program, and those that today's compiler has under other names: pipelined
collectives, which are on."""


def _a3(directory: Path) -> Iterator[Cells]:
    """Yield MaxText's table of A3 machines, with the flags of the scripts beside it."""
    text = (directory / "README.md").read_text(encoding="utf-8")
    for hosts, rate in _A3_CELL.findall(text):
        script = f"{hosts}vm.sh"
        between = f"dcn_data_parallelism={hosts};" if int(hosts) > 1 else ""
        yield {
            "family": "llama2-7b (MaxText)",
            "workload": "maxtext:base.yml",
            "options": f"{_LLAMA2};per_device_batch_size=4;remat_policy=minimal_with_context;"
            f"scan_layers=false;use_iota_embed=True;{between}ici_fsdp_parallelism=8",
            "xla_flags": _gpu_flags(directory / script),
            "node": "H100_80GB",
            "system": f"A3_high_{hosts}" if int(hosts) > 1 else "8xH100_80GB",
            "devices": str(8 * int(hosts)),
            "framework_year": "2024",
            "tflops_per_device": rate,
            "model_tflop_per_device": _tflop(
                layers=32, emb=4096, heads=32, mlp=11008, vocab=32000, seq=4096, batch=4
            ),
            "source": f"{_A3_SOURCE}/{{README,{script}}}+models/gpu/llama2_7b.yml",
            "note": f"{hosts} machines of 8 GPUs; attention's FLOPs counted in full",
        }


def _gpu_flags(file: Path) -> str:
    """Return the flags of a script that today's compiler has and that have a value."""
    text = file.read_text(encoding="utf-8")
    (line,) = re.findall(r'^export (XLA_FLAGS="[^"]*")', text, re.MULTILINE)
    flags = parse_recipe(line, file=str(file)).flags
    return ";".join(
        f"{name}={value}"
        for name, value in flags.items()
        if value and not name.startswith(_NOT_OF_TODAY)
    )


def _pax(facts: Path) -> Iterator[Cells]:
    for each in _training_steps(facts, "rosetta/projects/pax"):
        count, part = int(each["count"]), each["hardware"]
        node = "H100_80GB" if part.startswith("H100") else "A100_SXM_80GB"
        batch = int(each["global_batch"]) // count
        hosts = count // 8
        mesh = f"dcn_fsdp_parallelism={hosts};ici_fsdp_parallelism=8"
        remat = _PAX_REMAT[each["model"]]
        if each["model"] == "llama2-7b":
            options = f"{_LLAMA2};per_device_batch_size={batch};{remat};{mesh}"
        else:
            fused = each["attention"] == "flash"
            options = _GPT.format(
                batch=batch,
                emb=each["hidden"],
                heads=each["heads"],
                mlp=each["ffn"],
                layers=each["layers"],
                head=each["head_dim"],
                vocab=each["vocab"],
                attention="cudnn_flash_te" if fused else "dot_product",
                mesh=mesh
                if fused
                else f"dcn_data_parallelism={hosts};ici_data_parallelism=8;ici_fsdp_parallelism=1",
            )
            options = f"{options};{remat}"
        yield {
            "family": f"{each['model']} (Pax)",
            "workload": "maxtext:base.yml",
            "options": options,
            "system": f"{count}x{node}",
            "framework_year": "2024",
            "step_s": each["step_time_s"],
            "missing": _AGAIN if each["model"] == "gpt3-126M" else "",
            "source": each["source"],
            "note": _PAX_NOTE.format(
                remat="not published: here it is what minimal_flash says"
                if each["model"] == "llama2-7b"
                else "that of paxml 1.4.0"
            ),
        }


def _tpu_v3(facts: Path) -> Iterator[Cells]:
    for each in _facts(facts / "tpuv3_llama3.csv"):
        yield {
            "family": "llama3-like (MaxText)",
            "workload": each["workload"],
            "options": "mesh=fsdp=8;attention=unfused;state_dtype=bf16",
            "node": "TPUv3",
            "system": "8xTPUv3",
            "devices": "8",
            "framework_year": "2025",
            "step_s": each["runtime_s"],
            "resolution_s": "0.01",
            "source": "the documented comparison with measured steps",
        }


_CELL = re.compile(r"\|\s*(\d+)x (v5[ep])-(\d+)\s*\|(.*)\|")
_MODEL = re.compile(r"### (\d+)B model|(\d+)B TFLOP/sec/chip")
_SETTING = re.compile(r"^\w+='?[^$\s]+'?$")
_NO_PROGRAM = {
    "steps",
    "enable_checkpointing",
    "base_output_directory",
    "reuse_example_batch",
    "dataset_type",
    "gcs_metrics",
    "quantization",
}
_YEARS = {"v5e": "2023", "v5p": "2024"}


def _tpu_pages(directory: Path) -> Iterator[Cells]:
    """Yield MaxText's tables of v5e and v5p, with the settings of the scripts beside them."""
    for generation in ("v5e", "v5p"):
        text = (directory / generation / "README.md").read_text(encoding="utf-8")
        scales: list[str] = []
        for line in text.splitlines():
            models = [a or b for a, b in _MODEL.findall(line)]
            scales = models or scales
            cell = _CELL.search(line)
            if cell is None:
                continue
            slices, size = int(cell[1]), int(cell[3])
            chips = size // 2 if generation == "v5p" else size  # v5p slices are named by cores
            rates = [each.strip() for each in cell[4].split("|")][::2]
            for scale, rate in zip(scales, rates, strict=True):
                yield _tpu_row(
                    directory, generation, int(scale), slices=slices, chips=chips, rate=rate
                )


def _tpu_row(
    directory: Path, generation: str, scale: int, *, slices: int, chips: int, rate: str
) -> Cells:
    settings, flags = _script(directory / generation / f"{scale}b.sh")
    batch, seq = int(settings["per_device_batch_size"]), int(settings["max_target_length"])
    emb, heads, mlp, layers = _sizes(scale)
    if slices > 1:
        settings["dcn_data_parallelism"] = str(slices)
    return {
        "family": f"{scale}B (MaxText)",
        "workload": "maxtext:base.yml",
        "options": ";".join(f"{name}={value}" for name, value in settings.items()),
        "xla_flags": ";".join(f"{name}={value}" for name, value in flags.items()),
        "node": f"TPU{generation}",
        "system": f"{slices}x{chips}xTPU{generation}" if slices > 1 else f"{chips}xTPU{generation}",
        "devices": str(slices * chips),
        "framework_year": _YEARS[generation],
        "tflops_per_device": rate,
        "model_tflop_per_device": _tflop(
            layers=layers, emb=emb, heads=heads, mlp=mlp, vocab=32000, seq=seq, batch=batch
        ),
        "source": f"AI-Hypercomputer/maxtext, configs/tpu/{generation}: README.md and {scale}b.sh",
        "note": f"{slices} slices of {chips} chips; attention's FLOPs counted in full",
    }


def _script(file: Path) -> tuple[Cells, Cells]:
    """Return the settings and flags of a script."""
    text = file.read_text(encoding="utf-8")
    (line,) = re.findall(r"^export (LIBTPU_INIT_ARGS=.*)$", text, re.MULTILINE)
    command = text[text.index("python3 -m maxtext") :].replace("\\\n", " ")
    words = [word for word in command.split() if _SETTING.match(word)]
    pairs = dict(word.replace("'", "").split("=", 1) for word in words)
    kept = {name: value for name, value in pairs.items() if name not in _NO_PROGRAM}
    return kept, dict(parse_recipe(line, file=str(file)).flags)


def _sizes(scale: int) -> tuple[int, int, int, int]:
    """Return MaxText's sizes of its default model of a number of billions of parameters.

    They are those of its ``global_parameter_scale``: width, heads, inner width, layers.
    """
    power = scale.bit_length() - 1
    base, rest = divmod(power, 3)
    by_heads, by_width = base + (rest > 0), base + (rest > 1)
    return 2048 << by_width, 16 << by_heads, 7168 << by_heads, 16 << base


def _tflop(*, layers: int, emb: int, heads: int, mlp: int, vocab: int, seq: int, batch: int) -> str:
    """Return the TFLOP of a device's step as MaxText counts them, with heads of 128."""
    width = 128 * heads
    products = layers * (4 * emb * width + 3 * emb * mlp) + emb * vocab
    attention = 2 * layers * seq * width
    return f"{6 * batch * seq * (products + attention) / 1e12:.3f}"


_TRILLIUM = {
    "Llama3.1-70B-MaxText/v6e-128": ("llama3.1-70b", 128, 8192, "xla"),
    "Llama3.1-8B-MaxText/v6e-64": ("llama3.1-8b", 64, 8192, "xla"),
    "Llama3.1-8B-MaxText/v6e-8": ("llama3.1-8b", 8, 8192, "xla"),
    "Mistral-7B-MaxText": ("mistral-7b", 8, 8192, ""),
    "Mixtral-8x7B-MaxText": ("mixtral-8x7b", 256, 4096, ""),
}


def _trillium(facts: Path) -> Iterator[Cells]:
    text = (facts / "tpu_recipe_flags_v6e_llama3_8b.txt").read_text(encoding="utf-8")
    flags = ";".join(f"{name}={value}" for name, value in parse_recipe(text, file="").flags.items())
    for each in _facts(facts / "tpu_recipes_steps.csv"):
        key = each["path"].removeprefix("training/trillium/").removesuffix("/README.md")
        model, count, seq, _ = _TRILLIUM[key]
        batch = int(each["total_weights(tokens/step)"]) // (count * seq)
        yield {
            "family": f"{model} (MaxText)",
            "workload": "maxtext:base.yml",
            "options": f"model_name={model};{_V6E};per_device_batch_size={batch};"
            f"max_target_length={seq}",
            "xla_flags": flags,
            "node": "TPUv6e",
            "system": f"{count}xTPUv6e",
            "devices": str(count),
            "framework_year": "2025",
            "step_s": each["step_s"],
            "source": f"AI-Hypercomputer/tpu-recipes, {each['path']}",
            "note": "" if key.endswith("v6e-8") else _BATCH_NOTE,
        }


def _ironwood(facts: Path) -> Iterator[Cells]:
    for each in _training_steps(facts, "training/ironwood"):
        chips, seq = int(each["count"]), int(each["seq"])
        axes = dict(re.findall(r"(data|fsdp|fsdp_transpose|context)=(\d+)", each["parallelism"]))
        mesh = ";".join(
            f"ici_{'context' if name == 'context' else name}_parallelism={size}"
            for name, size in axes.items()
        )
        batch = int(each["global_batch"]) / (2 * chips)
        meant = _NAMES.get(each["model"], "")
        yield {
            "family": f"{each['model']} (MaxText)",
            "workload": "maxtext:base.yml",
            "options": f"model_name={_NAMES.get(each['model'], each['model'])};attention=flash;"
            f"{_remat(each['remat'], seq)};"
            f"per_device_batch_size={batch:g};max_target_length={seq};"
            f"{mesh or 'ici_fsdp_parallelism=-1'}" + _WRITTEN_OUT.get(each["model"], ""),
            "node": "TPUv7x",
            "system": f"{2 * chips}xTPUv7x",
            "devices": str(2 * chips),
            "framework_year": "2026",
            "step_s": each["step_time_s"],
            "source": each["source"],
            "note": f"{chips} chips of two devices"
            + (f"; {each['model']} is taken for {meant}" if meant else ""),
        }


_NAMES = {"deepseek-v3": "deepseek3-671b", "gemma4-2b": "gemma4-e2b"}
"""MaxText's names of models that a table calls otherwise."""

_WRITTEN_OUT = {"gemma4-2b": ";scan_layers=false"}
"""What MaxText demands of models whose layers share keys and values."""

_LONGEST = 131072
_KEPT = {"q": "query_proj", "k": "key_proj", "v": "value_proj"}


def _remat(published: str, seq: int) -> str:
    """Return MaxText's settings for what a table says of rematerialisation.

    That is ``full``, or ``custom:`` and names of tensors with where they are kept; in parentheses
    stands what sequences of 128k keep beside them.
    """
    policy, _, custom = published.partition(":")
    everywhere, _, longest = custom.partition(" (128k also ")
    named, _, where = everywhere.strip().partition("=")
    kept = [_KEPT.get(name, name) for name in named.split(",") if name]
    kept += [longest.rstrip(")")] if longest and seq == _LONGEST else []
    return ";".join([f"remat_policy={policy}", *(f"{name}={where}" for name in kept)])


def _mlperf(facts: Path) -> Iterator[Cells]:
    for each in _facts(facts / "mlperf_training_steps.csv"):
        part = "GB200_186GB" if "GB200" in each["platform"] else "B200_180GB"
        node = "H100_80GB" if "H100" in each["platform"] else part
        year = {"v4.0": "2024", "v4.1": "2024", "v5.0": "2025"}[each["version"]]
        yield {
            "family": f"{each['benchmark']} (MLPerf)",
            "workload": each["benchmark"],
            "node": node,
            "system": f"{each['gpus_guess']}x{node}",
            "devices": each["gpus_guess"],
            "framework_year": year,
            "step_s": each["step_time_median_s"],
            "source": each["source"],
        } | (_adapters(each) if each["benchmark"] == "llama2_70b_lora" else _megatron(each))


def _adapters(each: Cells) -> Cells:
    """Return the benchmark's adapters on eight H100, whose configuration is not in the table.

    Source: mlcommons/training, llama2_70b_lora: rank 16, beside attention's products, sequences of
    8,192 tokens. Tensor parallelism is what four rounds of two sequences leave.
    """
    tensor = (
        int(each["gpus_guess"]) * int(each["gradient_accumulation"]) // int(each["global_batch"])
    )
    parts = int(each["gpus_guess"]) // tensor
    return {
        "workload": "llama2-70b",
        "options": f"mesh=pipe=1,fsdp={parts},tp={tensor};global_batch={each['global_batch']};"
        "sequence=8192;micro_batch=1;product_dtype=f8;sequence_parallel=true;lora_rank=16;"
        "lora_modules=linear_proj+linear_qkv;software=megatron;fidelity=library",
        "note": "nothing is computed again",
    }


_MODELS = {"gpt3": "gpt3-175b", "llama31_405b": "llama3.1-405b"}
_NO_72 = "nodes of eight B200 stand for NVLink domains of 72 GB200, which do not divide 512"


def _megatron(each: Cells) -> Cells:
    """Return the pipeline of a submission, by the settings in its configuration."""
    said = dict(re.findall(r"(\w+)=(\w+)", each["config"]))
    stages, tensor = int(said["PIPELINE_MODEL_PARALLEL"]), int(said["TENSOR_MODEL_PARALLEL"])
    context, count = int(said.get("CONTEXT_PARALLEL", 1)), int(each["gpus_guess"])
    axes = {
        "pipe": stages,
        "fsdp": count // (stages * tensor * context),
        "context": context,
        "tp": tensor,
    }
    mesh = ",".join(f"{name}={size}" for name, size in axes.items() if size > 1)
    is_gb200 = "GB200" in each["platform"]
    return {
        "workload": _MODELS[each["benchmark"]],
        "options": f"mesh={mesh};schedule=interleaved:{said['INTERLEAVED_PIPELINE']};"
        f"global_batch={each['global_batch']};sequence={each['seq']};"
        f"micro_batch={said['MICRO_BATCH_SIZE']};product_dtype=f8;sequence_parallel=true;"
        "fidelity=library",
        "note": f"{_MEGATRON_NOTE}{'; ' + _NO_72 if is_gb200 else ''}",
    } | ({"system": f"{count}xB200_180GB"} if is_gb200 else {})


if __name__ == "__main__":
    main()
