"""Let ``torch.compile`` compile for absent GPUs, and name its kernels' origin.

Dynamo and Inductor work as usual; their generated code runs on tensors without data. What Inductor
decides by timing is decided without: library kernels for products, no padding of matrices.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch._dynamo import device_interface
from torch._dynamo.eval_frame import set_code_exec_strategy
from torch._dynamo.types import FrameAction, FrameExecStrategy
from torch._dynamo.utils import counters
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._inductor import compile_fx, config, constant_folding, ir, output_code, select_algorithm
from torch._inductor import utils as inductor_utils
from torch._inductor.codegen import triton as triton_codegen
from torch._inductor.fx_passes import pad_mm
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from hespas.torch.places import FORWARD, OPTIMIZER, RECOMPUTE, Place, Places, clean_name
from hespas.torch.tape import local_tensor

_guards: Any = torch._C._dynamo.guards
_CALLING_MODULES = ("recording", "replicas")
"""Of this package, what calls modules of the user."""
_MARK = "_hespas_at"
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_SKIPPED = re.compile(r"frame skipped: (?P<name>\S+) \((?P<file>.+) line (?P<line>\d+)\)")
_NAME = re.compile(r"(?:^|\.)(?!__dict__|_modules|L\[|G\[)(\w+)|\['(?!_modules')(\w+)'\]|\[(\d+)\]")


def forbid_compilation() -> None:
    """Let ``torch.compile`` and ``Module.compile`` change nothing."""

    @wraps(torch.compile)
    def unchanged(model: Any = None, **_options: Any) -> Any:
        if model is None:
            return lambda function: function
        return model

    torch.compile = unchanged
    torch.nn.Module.compile = lambda self, *arguments, **options: None


def uncompiled(root: Path) -> tuple[str, ...]:
    """Return the functions that Dynamo left to run as written, as ``step.py:7 forward``.

    Files are relative to ``root``. Where a graph breaks in a loop, Dynamo skips the function.
    """
    found = [_SKIPPED.search(reason) for reason in counters["unimplemented"]]
    return tuple(sorted({_named_place(one, root) for one in found if one is not None}))


def _named_place(skipped: re.Match[str], root: Path) -> str:
    file = Path(skipped["file"])
    shown = file.relative_to(root) if file.is_relative_to(root) else file
    return f"{shown}:{skipped['line']} {skipped['name']}"


def install_compilation(places: Places, properties: SimpleNamespace, *, count: int) -> None:
    """Let Inductor compile for ``count`` GPUs with such properties in this process."""
    _describe_device(properties, count)
    config.compile_threads = 1
    # Code must be made in this process: it has marks of its own.
    config.force_disable_caches = True
    config.triton.autotune_at_compile_time = False
    # Kernels are compiled for their PTX, and never loaded.
    config.use_static_triton_launcher = False
    torch._functorch.config.graphsafe_rng_functionalization = False
    _compile_nothing_of_ours()
    _allocate_fake()
    _fold_on_host()
    _decide_without_timing()
    _mark_origins(places)
    _make_states_fake()


def _compile_nothing_of_ours() -> None:
    """Let Dynamo compile what stands in torch's place inside of others alone, as torch's own.

    Nor is what that calls compiled, but modules.
    """
    package = __name__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}."):
            calls_modules = name.removeprefix(f"{package}.") in _CALLING_MODULES
            inner = FrameAction.DEFAULT if calls_modules else FrameAction.SKIP
            for code in _codes(vars(module), name):
                set_code_exec_strategy(code, FrameExecStrategy(FrameAction.SKIP, inner))


def _codes(members: Mapping[str, Any], module: str) -> Iterator[CodeType]:
    """Yield the code of all functions that a module defines, also inside of others."""
    for member in members.values():
        if getattr(member, "__module__", None) != module:
            continue
        if isinstance(member, type):
            yield from _codes(vars(member), module)
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if isinstance(function, FunctionType):
            yield from _and_inner(function.__code__)


def _and_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _and_inner(constant)


def _make_states_fake() -> None:
    """Let Dynamo make the states of an optimiser without data, as it does before it traces."""
    original = OptimizerVariable.call_method

    def call(variable: Any, translator: Any, name: str, *arguments: Any) -> Any:
        parameters = chain.from_iterable(
            group["params"] for group in variable.value.param_groups if name == "_init_group"
        )
        modes = (local_tensor(each).fake_mode for each in parameters)
        with next(modes, nullcontext()):
            return original(variable, translator, name, *arguments)

    OptimizerVariable.call_method = call


def _describe_device(properties: SimpleNamespace, count: int) -> None:
    interface: Any = device_interface.CudaInterface
    functions: dict[str, Callable[..., Any]] = {
        "current_device": torch.cuda.current_device,
        "set_device": torch.cuda.set_device,
        "device_count": lambda: count,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: properties,
        "memory_allocated": lambda device=None: 0,
        "is_bf16_supported": lambda including_emulation=False: True,
        "exchange_device": torch.cuda._exchange_device,
        "maybe_exchange_device": torch.cuda._maybe_exchange_device,
        "get_raw_stream": lambda device: 0,
        "is_triton_capable": lambda device=None: True,
        "raise_if_triton_unavailable": lambda device=None: None,
    }
    for name, function in functions.items():
        setattr(interface, name, staticmethod(function))
    interface.Worker.get_device_properties = staticmethod(functions["get_device_properties"])
    interface.Worker.current_device = staticmethod(functions["current_device"])
    # The first question makes torch register what it knows.
    device_interface.get_interface_for_device("cpu")
    device_interface.register_interface_for_device("cuda", interface)
    for index in range(count):
        device_interface.register_interface_for_device(f"cuda:{index}", interface)


def _allocate_fake() -> None:
    """Let generated code make tensors without data, where it would call the allocator."""

    def on(device: str) -> Callable[..., Any]:
        return lambda size, stride, dtype: torch.empty_strided(
            size, stride, dtype=dtype, device=device
        )

    _guards._empty_strided_cuda = on("cuda")
    _guards._empty_strided_cpu = _guards._empty_strided_cpu_pinned = on("cpu")
    _guards._reinterpret_tensor = lambda tensor, size, stride, offset=0: torch.as_strided(
        tensor, size, stride, tensor.storage_offset() + offset
    )
    _guards.assert_alignment = lambda *arguments: None


class _OnHost(TorchDispatchMode):
    """Moves operations to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return func(*tree_map(_host, args), **tree_map(_host, kwargs or {}))


def _host(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _fold_on_host() -> None:
    """Let tracing and Inductor evaluate constants on the host, which they do on the device."""
    original = constant_folding.ConstantFolder.run

    def run(folder: Any) -> Any:
        with _OnHost():
            return original(folder)

    @contextmanager
    def unset_fake_temporarily() -> Generator[Any]:
        with original_unset() as fake_mode, _OnHost():
            yield fake_mode

    original_unset: Any = proxy_tensor.unset_fake_temporarily
    constant_folding.ConstantFolder.run = run
    proxy_tensor.unset_fake_temporarily = unset_fake_temporarily


_UNTIMED: dict[str, Any] = {
    "coordinate_descent_tuning": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "triton.cudagraphs": False,
}
"""Settings of ``mode="max-autotune"`` and ``mode="reduce-overhead"``, which need a GPU."""


def _decide_without_timing() -> None:
    """Decide what Inductor would time: libraries' products, and matrices as they are."""
    _compile_without_timing()
    pad_mm.get_cached_should_pad = lambda key: False
    inductor_utils.is_big_gpu = lambda *arguments: True
    cache: Any = select_algorithm.AlgorithmSelectorCache

    def benchmark(
        selector: Any, choices: Any, *_arguments: Any, **_options: Any
    ) -> dict[Any, float]:
        return {
            choice: float(index if selector._is_extern(choice) else len(choices) + index)
            for index, choice in enumerate(choices, 1)
        }

    cache.benchmark = benchmark
    cache.make_precompile_fn = lambda selector, *arguments, **options: lambda *more, **other: {}
    cache.prescreen_choices = staticmethod(lambda choices, *arguments, **options: [])


def _compile_without_timing() -> None:
    """Let no mode of ``torch.compile`` time kernels or capture a graph of them."""
    original = compile_fx.compile_fx

    @wraps(original)
    def compiled(*arguments: Any, config_patches: Any = None, **options: Any) -> Any:
        wanted = {
            name: value for name, value in (config_patches or {}).items() if name not in _UNTIMED
        }
        inner = options.pop("inner_compile", compile_fx.compile_fx_inner)
        untimed = config.patch(_UNTIMED)
        return original(
            *arguments, inner_compile=untimed(inner), config_patches=wanted or None, **options
        )

    compile_fx.compile_fx = compiled


def _mark_origins(places: Places) -> None:
    """Let generated code name each kernel's modules and lines."""
    marks: list[Place] = []

    def mark(nodes: Iterable[Any], wrapper: Any) -> None:
        marks.append(_origin(nodes, places))
        wrapper.writeline(f"torch.{_MARK}({len(marks) - 1})")

    setattr(torch, _MARK, lambda index: places.enter_kernel(marks[index]))
    _before(triton_codegen.TritonScheduling, mark)
    original = ir.ExternKernel.codegen_comment

    def of_library(node: Any, wrapper: Any, *arguments: Any, **options: Any) -> None:
        own = node.get_origin_node()
        mark(node.get_origins() if own is None else [own], wrapper)
        original(node, wrapper, *arguments, **options)

    ir.ExternKernel.codegen_comment = of_library
    _leave_after(output_code.CompiledFxGraph, places)


def _before(scheduling: Any, mark: Callable[[Iterable[Any], Any], None]) -> None:
    original = scheduling.codegen_comment

    def comment(scheduler: Any, schedule: Any, *arguments: Any, **options: Any) -> None:
        nodes = {
            origin
            for node in schedule
            if isinstance(node, BaseSchedulerNode) and node.node is not None
            for origin in node.node.get_origins()
        }
        mark(nodes, V.graph.wrapper_code)
        original(scheduler, schedule, *arguments, **options)

    scheduling.codegen_comment = comment


def _leave_after(graph_class: Any, places: Places) -> None:
    original = graph_class.__call__

    def call(graph: Any, inputs: Any) -> Any:
        try:
            return original(graph, inputs)
        finally:
            places.leave_kernels()

    graph_class.__call__ = call


def _origin(nodes: Iterable[Any], places: Places) -> Place:
    """Return the module that most operations of a kernel share."""
    found = [place for node in nodes for place in _place(node, places)]
    if not found:
        return Place(phase=FORWARD)
    counts = Counter(place.scope for place in found)
    # The longest path is the most exact one; texts decide between equal ones, for equal answers.
    scope = max(counts, key=lambda scope: (counts[scope], len(scope), scope))
    phases = {place.phase for place in found}
    lines = Counter(place.line for place in found if place.scope == scope)
    return Place(
        scope=scope,
        phase=phases.pop() if len(phases) == 1 else FORWARD,
        line=max(lines, key=lambda line: (lines[line], line)),
    )


def _place(node: Any, places: Places) -> Iterator[Place]:
    own, of_forward = node.meta.get("nn_module_stack"), node.meta.get("fwd_nn_module_stack")
    stack = of_forward or own
    path = list(stack.values())[-1][0] if stack else ""
    trace = node.meta.get("stack_trace") or ""
    frames = _FRAME.findall(trace)
    lines = [line for file, number in frames if (line := places.user_line(file, int(number)))]
    if not path and not lines:
        return
    is_again = getattr(V.graph, "is_backward", False) and bool(own) and not of_forward
    phase = RECOMPUTE if is_again else OPTIMIZER if "/torch/optim/" in trace else FORWARD
    yield Place(
        scope=relative_path(path),
        phase=phase,
        line=lines[-1] if lines else "",
    )


def relative_path(path: str) -> str:
    """Return a module's path in what is compiled, from Dynamo's expression for it.

    ``L['self'].__dict__['_modules']['layers'][0].attention`` is ``layers.0.attention``: the first
    name is that of the variable that holds the outermost module.
    """
    of_module = path.rpartition("cell_contents")[2]
    names = [next(filter(None, match)) for match in _NAME.findall(of_module)]
    is_closure = of_module != path
    return clean_name(".".join(names[0 if is_closure else 1 :]))
