"""Measure on one NVIDIA GPU what predictions rest on, and write a CSV file for each part.

    python validation/gpu_measurements.py DIRECTORY [PART ...]

The parts are the keys of `PARTS`. Each file begins with comments: the device, its driver, versions
and the command. In tables of steps, ``count`` is the number of launches in a step, or the figure of
a row that is no kernel (bytes, MHz, W, degrees Celsius). PyTorch is needed, and JAX with its CUDA
plugin and hespas for ``xla_steps``. Nothing else runs this file: its results are in
validation/measurements, and `gpu_comparison.py` holds predictions against them.
"""

# PyTorch's and JAX's types are not installed where types are checked.
# pyright: basic
# ruff: noqa: PLC0415, SLF001

from __future__ import annotations

import csv
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUSTAINED_S = 3.0
"""How long a product runs before and while its sustained rate is taken, half of it each."""
PRODUCTS = (
    ("bf16", 2048, 2048, 2048),
    ("bf16", 4096, 4096, 4096),
    ("bf16", 8192, 8192, 8192),
    ("bf16", 16384, 16384, 16384),
    ("bf16", 8192, 4096, 4096),
    ("bf16", 8192, 14336, 4096),
    ("bf16", 8192, 4096, 14336),
    ("bf16", 8192, 128256, 4096),
    ("bf16", 4096, 2016, 576),
    ("bf16", 4096, 128256, 576),
    ("bf16", 64, 14336, 4096),
    ("bf16", 8, 14336, 4096),
    ("f8", 4096, 4096, 4096),
    ("f8", 8192, 8192, 8192),
    ("f8", 8192, 14336, 4096),
    ("tf32", 8192, 8192, 8192),
)
"""Type, m, n, k: an m x k by a k x n matrix."""
ATTENTION = (
    (1, 32, 8, 8192, 128),
    (2, 32, 8, 4096, 128),
    (8, 32, 32, 2048, 128),
    (4, 9, 9, 4096, 128),
    (32, 12, 12, 1024, 64),
)
"""Sequences, heads, key-value heads, tokens, size of a head; all causal."""
MODELS: Mapping[str, Mapping[str, int]] = {
    "llama3-100m": {
        "embedding": 576,
        "heads": 9,
        "kv_heads": 9,
        "mlp": 2016,
        "layers": 7,
        "batch": 4,
        "sequence": 4096,
    },
    "llama3-8b-2-layers": {
        "embedding": 4096,
        "heads": 32,
        "kv_heads": 8,
        "mlp": 14336,
        "layers": 2,
        "batch": 1,
        "sequence": 8192,
    },
}
VOCABULARY, HEAD = 128256, 128
XLA_STEPS = (
    "llama3-100m mesh=fsdp=1 batch=1 attention=unfused",
    "llama3-100m mesh=fsdp=1 batch=4 attention=cudnn",
    "llama3-1b mesh=fsdp=1 batch=1 attention=cudnn",
    "llama3-8b mesh=fsdp=1 layers=2 batch=1 sequence=8192 attention=cudnn",
    "gpt3-350m mesh=fsdp=1 batch=8 attention=cudnn",
    "gemma2-2b mesh=fsdp=1 layers=4 batch=1 attention=unfused",
    "mixtral-8x7b mesh=fsdp=1 layers=1 batch=1 attention=cudnn",
    "llama3-8b-decode mesh=tp=1 layers=8 batch=8 attention=unfused",
    "llama3-8b-prefill mesh=tp=1 layers=8 batch=1 sequence=4096 attention=cudnn",
)
"""Models and their settings."""
STEPS, WARM_UP = 20, 5


class Sampler:
    """Samples the clock of the multiprocessors and the power of the board while code runs."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self._samples: list[tuple[float, float, float]] = []

    @contextmanager
    def sampling(self) -> Iterator[list[tuple[float, float, float]]]:
        """Yield the samples (MHz, W, degrees Celsius), one every 20 ms until the block ends."""
        samples: list[tuple[float, float, float]] = []
        ends = threading.Event()

        def sample() -> None:
            nvml, handle = self._nvml, self._handle
            while not ends.wait(0.02):
                clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
                power = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
                samples.append((clock, power, nvml.nvmlDeviceGetTemperature(handle, 0)))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield samples
        finally:
            ends.set()
            thread.join()

    def facts(self) -> dict[str, str]:
        """Return the device's name, driver, largest clock and power limit."""
        nvml, handle = self._nvml, self._handle
        return {
            "device": str(nvml.nvmlDeviceGetName(handle)),
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "largest_sm_clock_mhz": str(nvml.nvmlDeviceGetMaxClockInfo(handle, 1)),
            "memory_clock_mhz": str(nvml.nvmlDeviceGetMaxClockInfo(handle, 2)),
            "power_limit_w": str(nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        }


def timed(run: Callable[[], object], *, times: int, warm_up: int = 3) -> float:
    """Return the median seconds of one call of ``run``, by events on the device."""
    import torch

    for _ in range(warm_up):
        run()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(times)
    ]
    for start, end in events:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1e3


def graphed(run: Callable[[], object], repeats: int) -> Callable[[], object]:
    """Return the replay of a CUDA graph of ``repeats`` calls: launches take no host time."""
    import torch

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return graph.replay


def _product(dtype: str, m: int, n: int, k: int) -> Callable[[], object]:
    import torch

    a = torch.randn(m, k, device="cuda", dtype=torch.float32)
    b = torch.randn(n, k, device="cuda", dtype=torch.float32)
    if dtype == "f8":
        a8, b8 = (x.to(torch.float8_e4m3fn) for x in (a, b))
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(
            a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    if dtype == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        return lambda: torch.mm(a, b.t())
    a16, b16 = a.bfloat16(), b.bfloat16()
    return lambda: torch.mm(a16, b16.t())


def products(sampler: Sampler) -> Iterator[dict[str, object]]:
    """Time products of random numbers: a short burst from idle, and sustained."""
    import torch

    for dtype, m, n, k in PRODUCTS:
        run = _product(dtype, m, n, k)
        flops = 2.0 * m * n * k
        time.sleep(1.0)
        burst_s = timed(run, times=10, warm_up=3)
        count = max(1, int(0.05 / burst_s))
        ends = time.monotonic() + SUSTAINED_S / 2
        while time.monotonic() < ends:
            for _ in range(count):
                run()
            torch.cuda.synchronize()
        rounds = max(1, int(SUSTAINED_S / 2 / (count * burst_s)))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with sampler.sampling() as samples:
            start.record()
            for _ in range(rounds * count):
                run()
            end.record()
            torch.cuda.synchronize()
        sustained_s = start.elapsed_time(end) / 1e3 / (rounds * count)
        yield {
            "type": dtype,
            "m": m,
            "n": n,
            "k": k,
            "burst_us": round(burst_s * 1e6, 2),
            "burst_tflops": round(flops / burst_s / 1e12, 1),
            "sustained_us": round(sustained_s * 1e6, 2),
            "sustained_tflops": round(flops / sustained_s / 1e12, 1),
            **_means(samples),
        }


def _means(samples: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    if not samples:
        return {"sm_clock_mhz": 0.0, "power_w": 0.0, "temperature_c": 0.0}
    clock, power, temperature = (statistics.fmean(column) for column in zip(*samples, strict=True))
    return {
        "sm_clock_mhz": round(clock),
        "power_w": round(power),
        "temperature_c": round(temperature),
    }


def memory(_: Sampler) -> Iterator[dict[str, object]]:
    """Time copies, sums and additions of buffers that fit in the L2 cache, and that do not."""
    import torch

    for size_mib in (1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256, 1024, 4096):
        count = size_mib * 2**20 // 2
        a, b, c = (torch.randn(count, device="cuda").bfloat16() for _ in range(3))
        repeats = max(1, min(200, 2048 // size_mib))
        cases = {
            "copy": (lambda b=b, a=a: b.copy_(a), 2),
            "add": (lambda a=a, b=b, c=c: torch.add(a, b, out=c), 3),
            "sum": (lambda a=a: a.sum(), 1),
        }
        for name, (run, buffers) in cases.items():
            duration_s = timed(graphed(run, repeats), times=5) / repeats
            yield {
                "operation": name,
                "buffer_mib": size_mib,
                "buffers": buffers,
                "us": round(duration_s * 1e6, 3),
                "gb_per_s": round(buffers * size_mib * 2**20 / duration_s / 1e9, 1),
            }
        del a, b, c


def attention(_: Sampler) -> Iterator[dict[str, object]]:
    """Time causal attention by the kernels that PyTorch chooses among, with gradients too."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    for batch, heads, kv_heads, tokens, head in ATTENTION:
        shape = (batch, heads, tokens, head)
        q = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k, v = (
            torch.randn(
                (batch, kv_heads, tokens, head), device="cuda", dtype=torch.bfloat16
            ).requires_grad_()
            for _ in range(2)
        )
        gradient = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for name, backend in backends.items():

            def forward(backend=backend, q=q, k=k, v=v, grouped=heads != kv_heads) -> Any:
                with sdpa_kernel(backend):
                    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

            try:
                with torch.no_grad():
                    forward_s = timed(forward, times=20)
                result = forward()
                backward_s = timed(
                    lambda result=result, q=q, k=k, v=v, gradient=gradient: torch.autograd.grad(
                        result, (q, k, v), gradient, retain_graph=True
                    ),
                    times=20,
                )
            except RuntimeError as error:
                print(f"attention by {name}: {error}", file=sys.stderr)
                continue
            flops = 4.0 * batch * heads * tokens * tokens * head / 2
            yield {
                "kernel": name,
                "batch": batch,
                "heads": heads,
                "kv_heads": kv_heads,
                "tokens": tokens,
                "head_size": head,
                "forward_us": round(forward_s * 1e6, 1),
                "forward_tflops": round(flops / forward_s / 1e12, 1),
                "backward_us": round(backward_s * 1e6, 1),
                "backward_tflops": round(2.5 * flops / backward_s / 1e12, 1),
            }


def launches(_: Sampler) -> Iterator[dict[str, object]]:
    """Time launches: by the host, in a CUDA graph, and the gap between kernels of one stream."""
    import torch

    tiny = torch.zeros(1, device="cuda")
    small = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    norm = torch.nn.RMSNorm(64, device="cuda", dtype=torch.bfloat16)
    linear = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
    cases: dict[str, Callable[[], object]] = {
        "add_": lambda: tiny.add_(1),
        "mm": lambda: torch.mm(small, small),
        "RMSNorm": lambda: norm(small),
        "Linear": lambda: linear(small),
        "softmax": lambda: torch.softmax(small, -1),
    }
    for name, run in cases.items():
        for _ in range(100):
            run()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(3000):
            run()
        torch.cuda.synchronize()
        host_s = (time.perf_counter() - begin) / 3000
        with torch.no_grad():
            graph_s = timed(graphed(run, 500), times=5) / 500
        kernel_s = _kernel_seconds(run)
        yield {
            "operation": name,
            "eager_us": round(host_s * 1e6, 3),
            "graph_us": round(graph_s * 1e6, 3),
            "kernel_us": round(kernel_s * 1e6, 3),
        }
    for size_mib in (1, 4, 16, 64):
        a = torch.randn(size_mib * 2**20 // 2, device="cuda").bfloat16()
        b = torch.empty_like(a)

        def run(a=a, b=b) -> object:
            return b.copy_(a)

        eager_s = timed(lambda run=run: [run() for _ in range(200)], times=5) / 200
        graph_s = timed(graphed(run, 200), times=5) / 200
        yield {
            "operation": f"copy {size_mib} MiB",
            "eager_us": round(eager_s * 1e6, 3),
            "graph_us": round(graph_s * 1e6, 3),
            "kernel_us": round(_kernel_seconds(run) * 1e6, 3),
        }


def _kernel_seconds(run: Callable[[], object]) -> float:
    """Return the seconds that the kernels of one call take, by the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(20):
            run()
        torch.cuda.synchronize()
    return sum(_device_us(row) for row in profiler.key_averages()) / 20 / 1e6


def _device_us(row: Any) -> float:
    return float(getattr(row, "self_device_time_total", 0.0))


def _torch_model(sizes: Mapping[str, int]) -> Any:
    """Return a decoder as Llama 3: grouped attention, RoPE, SwiGLU, no biases, untied heads."""
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention, silu

    width, heads, kv_heads = sizes["embedding"], sizes["heads"], sizes["kv_heads"]

    def rotated(x: Any, angles: Any) -> Any:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * angles).flatten(-2).type_as(x)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q = nn.Linear(width, heads * HEAD, bias=False)
            self.k = nn.Linear(width, kv_heads * HEAD, bias=False)
            self.v = nn.Linear(width, kv_heads * HEAD, bias=False)
            self.o = nn.Linear(heads * HEAD, width, bias=False)
            self.gate = nn.Linear(width, sizes["mlp"], bias=False)
            self.up = nn.Linear(width, sizes["mlp"], bias=False)
            self.down = nn.Linear(sizes["mlp"], width, bias=False)

        def forward(self, x: Any, angles: Any) -> Any:
            y = self.attention_norm(x)
            q = self.q(y).unflatten(-1, (heads, HEAD))
            k, v = (p(y).unflatten(-1, (kv_heads, HEAD)) for p in (self.k, self.v))
            q, k = rotated(q, angles), rotated(k, angles)
            mixed = scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                enable_gqa=heads != kv_heads,
            )
            x = x + self.o(mixed.transpose(1, 2).flatten(-2))
            y = self.mlp_norm(x)
            return x + self.down(silu(self.gate(y)) * self.up(y))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, width)
            self.layers = nn.ModuleList(Layer() for _ in range(sizes["layers"]))
            self.norm = nn.RMSNorm(width)
            self.head = nn.Linear(width, VOCABULARY, bias=False)
            steps = torch.arange(sizes["sequence"]).float()
            rates = 500000.0 ** (-torch.arange(0, HEAD, 2).float() / HEAD)
            table = torch.polar(torch.ones(()), torch.outer(steps, rates))[:, None, :]
            self.register_buffer("angles", table, persistent=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x, self.angles)
            return self.head(self.norm(x))

    return Decoder()


def _hugging_face_model() -> Any:
    """Return Qwen3-0.6B without its weights; sizes: its published configuration, 2025-04-29."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
        use_cache=False,
    )
    return AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    )


def hugging_face_steps(sampler: Sampler) -> Iterator[dict[str, object]]:
    """Time training steps of Qwen3-0.6B in bf16, 4 x 2048 tokens, AdamW by `foreach`."""
    import torch

    for mode in ("eager", "compiled"):
        torch.manual_seed(0)
        model = _hugging_face_model().cuda().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(151936, (4, 2048), device="cuda")
        forward = torch.compile(model) if mode == "compiled" else model

        def step(forward=forward, tokens=tokens, optimizer=optimizer) -> None:
            forward(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        yield from _torch_rows(step, {"model": "qwen3-0.6b", "mode": mode}, sampler)
        del model, optimizer, forward, step
        torch.cuda.empty_cache()
        torch._dynamo.reset()


def grouped_products(_: Sampler) -> Iterator[dict[str, object]]:
    """Time grouped products of experts with equal numbers of tokens, bf16."""
    import torch

    for experts, rows, n, k in (
        (8, 8192, 14336, 4096),
        (8, 256, 14336, 4096),
        (128, 131072, 768, 2048),
        (128, 131072, 2048, 768),
        (128, 1024, 768, 2048),
        (256, 65536, 2048, 7168),
    ):
        a = torch.randn(rows, k, device="cuda").bfloat16()
        b = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (rows // experts)
        duration_s = timed(lambda a=a, b=b, ends=ends: torch._grouped_mm(a, b, offs=ends), times=30)
        yield {
            "experts": experts,
            "rows": rows,
            "n": n,
            "k": k,
            "us": round(duration_s * 1e6, 1),
            "tflops": round(2.0 * rows * n * k / duration_s / 1e12, 1),
        }


def torch_steps(sampler: Sampler) -> Iterator[dict[str, object]]:
    """Time training steps in PyTorch: weights in f32, autocast to bf16, clipping, fused AdamW."""
    import torch
    from torch.nn.functional import cross_entropy

    for name, sizes in MODELS.items():
        for mode in ("eager", "compiled"):
            torch.manual_seed(0)
            model = _torch_model(sizes).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            tokens = torch.randint(
                VOCABULARY, (sizes["batch"], sizes["sequence"] + 1), device="cuda"
            )
            forward = torch.compile(model) if mode == "compiled" else model

            def step(forward=forward, tokens=tokens, model=model, optimizer=optimizer) -> None:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    logits = forward(tokens[:, :-1])
                loss = cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

            yield from _torch_rows(step, {"model": name, "mode": mode}, sampler)
            del model, optimizer, forward, step, tokens
            torch.cuda.empty_cache()
            torch._dynamo.reset()


def _torch_rows(
    step: Callable[[], None], names: dict[str, object], sampler: Sampler
) -> Iterator[dict[str, object]]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    durations = []
    with sampler.sampling() as samples:
        for _ in range(STEPS):
            begin = time.perf_counter()
            step()
            torch.cuda.synchronize()
            durations.append(time.perf_counter() - begin)
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    yield _row(names, "step", 1, statistics.median(durations))
    yield from _board_rows(samples, names)
    yield _row(names, "peak allocated bytes", peak, 0.0)
    yield _row(names, "peak reserved bytes", reserved, 0.0)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(4):
            step()
        torch.cuda.synchronize()
    rows = [row for row in profiler.key_averages() if _device_us(row) > 0]
    for row in sorted(rows, key=_device_us, reverse=True):
        yield _row(names, row.key, row.count / 4, _device_us(row) / 4e6)


def _board_rows(
    samples: Sequence[tuple[float, float, float]], names: dict[str, object]
) -> Iterator[dict[str, object]]:
    for name, value in _means(samples).items():
        yield _row(names, name, value, 0.0)


def _row(names: dict[str, object], kernel: str, count: float, seconds: float) -> dict[str, object]:
    return {**names, "kernel": kernel, "count": count, "us": round(seconds * 1e6, 2)}


def xla_steps(sampler: Sampler) -> Iterator[dict[str, object]]:
    """Time steps of hespas' models by XLA, and their kernels by its profiler."""
    for step in XLA_STEPS:
        name, *settings = step.split()
        given = dict(setting.split("=", 1) for setting in settings)
        try:
            yield from _xla_rows(
                name, given, {"model": name, "settings": " ".join(settings)}, sampler
            )
        except Exception as error:  # noqa: BLE001 - the other steps are worth their rows
            print(f"{step}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)


def _xla_rows(
    name: str, settings: Mapping[str, str], names: dict[str, object], sampler: Sampler
) -> Iterator[dict[str, object]]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding

    from hespas.models.catalogue import model_named

    step = model_named(name).step(dict(settings))
    axis = settings["mesh"].partition("=")[0]
    mesh = jax.make_mesh((1,), (axis,), axis_types=(AxisType.Auto,))

    def filled(path: Any, leaf: Any) -> Any:
        key = jax.random.key(leaf.size % 2**31)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            content = (0.02 * jax.random.normal(key, leaf.shape, jnp.float32)).astype(leaf.dtype)
            if "second_moment" in jax.tree_util.keystr(path):
                content = jnp.square(content)
        elif leaf.ndim >= 2:
            content = jax.random.randint(key, leaf.shape, 0, VOCABULARY, leaf.dtype)
        else:
            content = jnp.ones(leaf.shape, leaf.dtype)
        return jax.device_put(content, NamedSharding(mesh, leaf.sharding.spec))

    with jax.set_mesh(mesh):
        compiled = step.function.lower(*step.arguments).compile()
        state, *others = jax.tree.map_with_path(filled, step.arguments)
        # Steps of inference take the memory of their cache: each run gets arguments of its own.
        if name.endswith(("decode", "prefill")):
            del state, others
            yield from _inference_rows(compiled, step, filled, names)
            return

        for _ in range(WARM_UP):
            state = compiled(state, *others)[0]
        jax.block_until_ready(state)
        durations = []
        with sampler.sampling() as samples:
            for _ in range(STEPS):
                begin = time.perf_counter()
                state = compiled(state, *others)[0]
                jax.block_until_ready(state)
                durations.append(time.perf_counter() - begin)
        yield _row(names, "step", 1, statistics.median(durations))
        yield from _board_rows(samples, names)
        yield from _memory_rows(compiled, names)
        with tempfile.TemporaryDirectory() as directory:
            with jax.profiler.trace(directory, create_perfetto_trace=True):
                for _ in range(4):
                    state = compiled(state, *others)[0]
                jax.block_until_ready(state)
            yield from _traced(Path(directory), 4, names)


def _inference_rows(
    compiled: Any, step: Any, filled: Callable[[Any], Any], names: dict[str, object]
) -> Iterator[dict[str, object]]:
    import jax

    durations = []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(8):
            arguments = jax.block_until_ready(jax.tree.map_with_path(filled, step.arguments))
            if number == 7:
                with jax.profiler.trace(directory, create_perfetto_trace=True):
                    jax.block_until_ready(compiled(*arguments))
            else:
                begin = time.perf_counter()
                jax.block_until_ready(compiled(*arguments))
                durations.append(time.perf_counter() - begin)
        yield _row(names, "step", 1, statistics.median(durations[2:]))
        yield from _memory_rows(compiled, names)
        yield from _traced(Path(directory), 1, names)


def _memory_rows(compiled: Any, names: dict[str, object]) -> Iterator[dict[str, object]]:
    import jax

    analysis = compiled.memory_analysis()
    for field in ("argument", "output", "alias", "temp"):
        size = getattr(analysis, f"{field}_size_in_bytes")
        yield _row(names, f"{field} bytes", size, 0.0)
    peak = jax.devices()[0].memory_stats().get("peak_bytes_in_use", 0)
    yield _row(names, "peak in use bytes", peak, 0.0)


def _traced(directory: Path, steps: int, names: dict[str, object]) -> Iterator[dict[str, object]]:
    """Yield the kernels of a trace that JAX's profiler wrote."""
    file = next(directory.rglob("perfetto_trace.json.gz"))
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    processes = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("name") == "process_name"
    }
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event.get("name") == "thread_name"
    }
    kernels: dict[tuple[str, str], list[float]] = defaultdict(list)
    first, last = float("inf"), 0.0
    for event in events:
        if event.get("ph") != "X" or "GPU" not in processes.get(event["pid"], ""):
            continue
        if "Stream" not in threads.get((event["pid"], event["tid"]), ""):
            continue
        operation = str(event.get("args", {}).get("hlo_op", ""))
        kernels[event["name"], operation].append(event["dur"])
        first, last = min(first, event["ts"]), max(last, event["ts"] + event["dur"])
    yield _row(names, "from the first kernel to the last", 1, (last - first) / steps / 1e6)
    for (kernel, operation), durations in sorted(kernels.items(), key=lambda item: -sum(item[1])):
        label = f"{kernel} ({operation})" if operation else kernel
        yield _row(names, label, len(durations) / steps, sum(durations) / steps / 1e6)


PARTS: Mapping[str, Callable[[Sampler], Iterator[dict[str, object]]]] = {
    "products": products,
    "memory": memory,
    "attention": attention,
    "launches": launches,
    "grouped_products": grouped_products,
    "torch_steps": torch_steps,
    "hugging_face_steps": hugging_face_steps,
    "xla_steps": xla_steps,
}


def main(directory: Path, parts: Sequence[str]) -> None:
    """Measure the parts, each in a process of its own, and write their files."""
    directory.mkdir(parents=True, exist_ok=True)
    if len(parts) != 1:
        for part in parts or PARTS:
            begin = time.monotonic()
            command = [sys.executable, __file__, str(directory), part]
            code = subprocess.run(command, check=False).returncode
            print(f"{part}: exit {code} after {time.monotonic() - begin:.0f} s", flush=True)
        return
    (part,) = parts
    sampler = Sampler()
    facts = {**sampler.facts(), **_versions(part)}
    name = facts["device"].replace("NVIDIA ", "").replace(" ", "_")
    rows = PARTS[part](sampler)
    with (directory / f"{part}-{name}.csv").open("w", newline="") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in facts.items())
        file.write(f"# command: python validation/gpu_measurements.py DIRECTORY {part}\n")
        writer: csv.DictWriter[str] | None = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
            file.flush()


def _versions(part: str) -> dict[str, str]:
    from importlib import metadata

    packages = ("jax", "jaxlib", "jax-cuda13-pjrt") if part == "xla_steps" else ("torch", "triton")
    versions = {}
    for package in (*packages, "nvidia-cublas", "nvidia-cudnn-cu13"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    main(Path(sys.argv[1]), sys.argv[2:])
