"""Tell what options of other tools are called here.

They are those of Megatron-LM, torchtitan, DeepSpeed, vLLM, SGLang, TensorRT-LLM and of benchmarks.
"""

from __future__ import annotations

from collections.abc import Collection

_BY_MEANING = {
    ("--cluster COUNTxPART",): (
        *("device", "gpu", "gpus", "num-gpus", "gpu-type", "hardware", "nodes", "num-nodes"),
        *("nnodes", "nproc-per-node", "world-size", "system-name"),
    ),
    ("--mesh tp=N",): (
        *("tp", "tp-size", "tensor-parallel-size", "tensor-model-parallel-size"),
        *("tensor-parallel", "mp", "model-parallel-size"),
    ),
    ("--mesh pipe=N",): (
        *("pp", "pp-size", "pipeline-parallel-size", "pipeline-model-parallel-size", "pipeline"),
    ),
    ("--replicas N", "--mesh data=N"): ("dp", "dp-size", "data-parallel-size", "ddp"),
    ("--mesh fsdp=N",): ("fsdp", "data-parallel-shard-degree", "zero", "zero-stage"),
    ("--mesh context=N",): ("cp", "cp-size", "context-parallel-size"),
    ("--mesh expert=N",): ("ep", "ep-size", "expert-parallel-size", "expert-model-parallel-size"),
    ("--set sequence_parallel=true",): ("sequence-parallel", "sp"),
    ("--set product_dtype=f8, or weight_dtype=f8 in inference",): (
        *("precision", "fp8", "float8", "fp4", "quantization", "quantize", "weight-dtype"),
        *("fp8-format", "mixed-precision", "bf16", "fp16"),
    ),
    ("--set cache_dtype=f8",): ("kv-cache-dtype", "kv-dtype", "kv-cache-quantization"),
    ("--isl N", "--sequence N"): (
        *("seq-len", "seq-length", "sequence-length", "max-model-len", "context-length"),
        *("max-seq-len", "input-len", "random-input-len", "random-input", "prompt-length"),
    ),
    ("--osl N", "--set new_tokens=N"): (
        *("output-len", "random-output-len", "random-output", "max-tokens", "max-new-tokens"),
    ),
    ("--batch N",): ("batch-size", "train-batch-size", "local-batch-size"),
    ("--global-batch N",): ("global-batch-size", "gbs"),
    ("--micro-batch N",): ("micro-batch-size", "mbs"),
    ("--micro-batches N",): ("num-microbatches", "num-micro-batches"),
    ("--set accumulation=N",): (
        *("gradient-accumulation", "gradient-accumulation-steps", "grad-accum", "accumulation"),
    ),
    ("--remat POLICY",): (
        *("recompute", "recompute-granularity", "recompute-activations"),
        *("activation-checkpoint", "activation-checkpointing", "gradient-checkpointing"),
    ),
    ("--rate R",): ("qps", "request-rate", "rps"),
    ("--requests N",): ("num-prompts", "num-requests"),
    ("--concurrency N",): ("max-concurrency", "users", "num-concurrent-requests"),
    ("--max-sequences N",): ("max-num-seqs", "max-running-requests", "max-batch-size"),
    ("--max-batched-tokens N",): (
        *("max-num-batched-tokens", "max-num-tokens", "chunked-prefill-size"),
    ),
    ("--memory-share SHARE",): (
        *("gpu-memory-utilization", "mem-fraction-static", "kv-cache-free-gpu-mem-fraction"),
    ),
    ("--engine NAME", "--fidelity library"): ("backend", "framework"),
    ("--json FILE",): ("format", "output-format", "output-json"),
}
OPTIONS = {name: lines for lines, names in _BY_MEANING.items() for name in names}
"""What an option of another tool may be here, likeliest first, by its name without dashes."""


def here(option: str, known: Collection[str]) -> str | None:
    """Return what another tool's option is among ``known`` ones; None without.

    >>> here("--tensor-parallel-size", ["--mesh", "--rate"])
    '--mesh tp=N'
    >>> here("--dp", ["--mesh"]), here("--dp", ["--mesh", "--replicas"]), here("--dp", ["--rate"])
    ('--mesh data=N', '--replicas N', None)
    """
    name = option.lstrip("-").replace("_", "-").casefold()
    lines = OPTIONS.get(name, ())
    return next((line for line in lines if line.split(" ")[0] in known), None)
