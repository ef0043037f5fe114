"""Record the second step of a user's function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import currentframe
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import cpp_extension

from hespas.base.version import installed_version
from hespas.errors import UnsupportedError
from hespas.program.recorded import (
    CollectiveCall,
    KernelCall,
    Operation,
    RecordedStep,
    encode_recorded,
)
from hespas.torch.compiling import forbid_compilation, install_compilation, uncompiled
from hespas.torch.device import fake_mode, install_fake_gpus
from hespas.torch.flash_attention import install_flash_attention
from hespas.torch.groups import Groups, follow_values
from hespas.torch.host import ROUTED_EVENLY, DeviceValues, copy_data
from hespas.torch.inputs import Inputs
from hespas.torch.kernels import TritonKernels, install_driver
from hespas.torch.launched import LaunchedKernels
from hespas.torch.libraries import install_library_choices
from hespas.torch.loop import Loop, run_in_one_process, run_script
from hespas.torch.masks import BlockMasks
from hespas.torch.messages import StepRequest
from hespas.torch.places import Places, clean_name, user_frame, user_line
from hespas.torch.reading import Reader, unknown_numbers
from hespas.torch.recorder import Recorder
from hespas.torch.replicas import Replicas, install_replicas
from hespas.torch.script import in_words, load_function, read_arguments, step_of
from hespas.torch.stages import Stages
from hespas.torch.streams import Streams
from hespas.torch.tape import Tape, local_tensor, recorded_storages
from hespas.torch.tokens import Passes

_PARAMETER, _GRADIENT, _OPTIMIZER_STATE = "parameter", "gradient", "optimizer_state"
_GATHERED = "gathered_parameter"
_GATHERED_FLAT = ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard")
"""A FlatParameter's whole copies, and its shard in the type of products."""
_BUFFER, _INPUT = "buffer", "input"
"""What storages are for."""


def record_step(request: StepRequest) -> tuple[bytes, Inputs]:
    """Return the encoded second step and what the program read.

    Raises `HespasError` with the user's file and line for whatever goes wrong in the function.
    """
    root = Path(request.directory)
    places, tape = Places(root=root), Tape()
    tape.place = places.now
    streams = Streams(tape)
    groups = Groups(streams)
    values = DeviceValues()
    follow_values(values)
    copy_data()
    masks = BlockMasks(values)
    kernels, launched = TritonKernels(tape, masks, values.host), LaunchedKernels(tape, values)
    properties = install_fake_gpus(request.gpu, streams, count=request.local_world_size)
    install_flash_attention(values, places)
    groups.install(rank=request.rank, world_size=request.world_size)
    stages = Stages(groups, places, Path(request.stages))
    stages.install()
    install_replicas()
    run_in_one_process(request.local_rank)
    masks.install()
    choices = install_library_choices(
        torch_version=_version(request.torch_version or torch.__version__),
        capability=(request.gpu.major, request.gpu.minor),
    )
    install_driver(request.gpu)
    launched.install(request.gpu.shared_memory_per_block_bytes)
    if request.is_eager:
        forbid_compilation()
    else:
        install_compilation(places, properties, count=request.local_world_size)
        kernels.install()
    passes = Passes(request.world_size)
    _follow_modules(places, passes)
    _follow_optimizers(places, tape)
    _refuse_extensions(places)
    _refuse_what_needs_a_gpu(places)
    inputs = Inputs(not_inputs=_own_directories(request))
    inputs.follow()
    try:
        facts = _run(request, places, groups, values, passes)
        compiled = kernels.recorded(tape.calls)
    except (Exception, SystemExit) as error:
        raise in_words(error, user_line(error, root), location=request.module) from error
    step = RecordedStep(
        name=request.name,
        target=request.gpu.architecture,
        world_size=request.world_size,
        rank=request.rank,
        mesh=_mesh(groups, request.world_size),
        calls=tuple(tape.calls),
        storages=recorded_storages(tape.storages),
        kernels=(*compiled, *launched.recorded(tape.calls)),
        is_compiled=bool(compiled),
        uncompiled=uncompiled(root),
        host_updates=facts.host_updates,
        versions={"torch": str(torch.__version__), "triton": installed_version("triton") or ""},
        tokens=facts.tokens,
        pipeline=stages.pipeline,
        notes=facts.notes,
    )
    del choices
    return encode_recorded(step), inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What is known at the end of a step: modules and optimisers may be gone after it."""

    tokens: int | None = None
    host_updates: int
    notes: tuple[str, ...]


def _run(
    request: StepRequest, places: Places, groups: Groups, values: DeviceValues, passes: Passes
) -> _Facts:
    """Record the second step."""
    tape = groups.streams.tape
    location = f"{request.module}:{request.function}".removesuffix(":")
    facts: list[_Facts] = []

    def begin() -> None:
        groups.end_step()
        places.name_modules()
        for _, path, module in places.named_modules():
            _mark_flat(tape, module, path)
        passes.start()
        tape.start()

    def end() -> None:
        # Where a later stage is idle, the first stage raises an error as it waits for it.
        if request.rank == 0:
            _refuse_nothing(tape, location)
        _mark_lasting(tape, places)
        tape.stop()
        stated = getattr(step, "tokens", None)
        found = passes.tokens(tape.calls) if stated is None else None
        facts.append(
            _Facts(
                tokens=stated if found is None else found.count,
                host_updates=_host_updates(places),
                notes=(
                    *reader.notes(),
                    *_notes(places, values),
                    *(() if found is None else (found.origin,)),
                ),
            )
        )

    loop, step = Loop(tape, begin, end), None
    reader = Reader(loop, places, values)
    with fake_mode(), Recorder(tape, places, groups, values):
        with loop.followed(), unknown_numbers(reader):
            step = _made(request, loop, location)
        if step is None:
            return facts[0]
        _refuse_prints(places)
        step()
        begin()
        step()
        end()
    return facts[0]


def _made(request: StepRequest, loop: Loop, location: str) -> Callable[[], Any]:
    """Return the step that the user's function makes; a loop does not return."""
    if not request.function:
        run_script(request.module, request.words)
        return step_of(None, has_begun=loop.has_begun, location=location)
    function = load_function(request.module, request.function)
    arguments = read_arguments(function, request.arguments, location=location)
    return step_of(function(**arguments), has_begun=loop.has_begun, location=location)


def _notes(places: Places, values: DeviceValues) -> Iterator[str]:
    """Yield what is recorded otherwise than it runs on GPUs."""
    yield from places.notes
    if values.are_routed:
        yield ROUTED_EVENLY
    if any(isinstance(module, torch.nn.RNNBase) for module in places.modules):
        yield (
            "computation: torch.nn's LSTM, GRU and RNN are recorded token by token; cuDNN has fewer"
            " kernels for them, and takes less time"
        )


def _refuse_nothing(tape: Tape, location: str) -> None:
    """Refuse a step that launches no kernel."""
    if not any(isinstance(call, Operation | KernelCall | CollectiveCall) for call in tape.calls):
        raise UnsupportedError(
            "the step computes nothing on the device",
            location=location,
            hint='move the model and its inputs there, as in model.to("cuda")',
        )


def _version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in text.split("+", maxsplit=1)[0].split(".")[:2])


def _mesh(groups: Groups, world_size: int) -> tuple[tuple[str, int], ...]:
    """Return the axes of the whole-world mesh with most axes, if any."""
    whole = [mesh for mesh in groups.meshes if prod(size for _, size in mesh) == world_size]
    return max(whole, key=len, default=())


def _follow_modules(places: Places, passes: Passes) -> None:
    """Note which module's forward pass runs, and what models are given."""
    original: Callable[..., Any] = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(module, *args, **kwargs)
        if places.is_outside:
            passes.add(module, args, kwargs)
        places.enter_module(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            places.leave_module()

    def note(module: Any, *_registered: Any) -> None:
        if not torch.compiler.is_compiling():
            places.modules.add(module)

    torch.nn.Module.__call__ = call
    # Of what is compiled whole, no module is called.
    register_module_parameter_registration_hook(note)
    register_module_module_registration_hook(note)


def _follow_optimizers(places: Places, tape: Tape) -> None:
    """Note when an optimiser's step runs, and which gradients it reads."""

    def before(optimizer: Any, *_arguments: Any) -> None:
        _mark_gradients(tape, places, optimizer)
        places.begin_optimizer(optimizer)

    def after(optimizer: Any, *_arguments: Any) -> None:
        del optimizer
        places.end_optimizer()

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _refuse_extensions(places: Places) -> None:
    """Make compiling a CUDA extension an error: nothing here runs it."""

    def refuse(name: str, *_arguments: Any, **_options: Any) -> None:
        raise UnsupportedError(
            f"the extension {name} is compiled with CUDA's compiler, and none of it runs here",
            location=places.line(),
            hint="call torch's operations, or torch.library.register_fake",
        )

    cpp_extension._jit_compile = refuse


def _refuse_what_needs_a_gpu(places: Places) -> None:
    """Make captured CUDA graphs, and several GPUs of one process, errors."""

    def refusal(what: str, hint: str) -> Callable[..., None]:
        def refuse(*_arguments: Any, **_options: Any) -> None:
            raise UnsupportedError(f"{what} is not recorded", location=places.line(), hint=hint)

        return refuse

    torch.nn.DataParallel.__init__ = refusal(
        "DataParallel, which runs several GPUs in one process,",
        "wrap the model in torch.nn.parallel.DistributedDataParallel",
    )
    torch.cuda.CUDAGraph.__new__ = refusal(
        "a CUDA graph",
        "call what it captures, and give --cuda-graphs",
    )


def _refuse_prints(places: Places) -> None:
    """Make it an error to print a device's tensor."""
    original = torch.Tensor.__repr__

    def shown(tensor: Any, **options: Any) -> str:
        here = currentframe()
        caller = here and here.f_back
        is_of_device = isinstance(tensor, FakeTensor) and tensor.device.type == "cuda"
        if is_of_device and caller is not None and user_frame(caller) is caller:
            raise UnsupportedError(
                "the step prints a tensor, and tensors have no data here",
                location=places.line(),
                hint="leave it out of the step that hespas runs",
            )
        return original(tensor, **options)

    torch.Tensor.__repr__ = shown


def _own_directories(request: StepRequest) -> tuple[str, ...]:
    """Return the directories of what hespas and torch write while they record."""
    caches = (os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"])
    return (str(Path(__file__).parents[1]), request.stages, *caches)


def _mark_gradients(tape: Tape, places: Places, optimizer: Any) -> None:
    """Mark the gradients that an optimiser is about to read."""
    names = _parameter_names(places)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _mark(tape, parameter.grad, _GRADIENT, names.get(id(parameter), ""))


def _mark_lasting(tape: Tape, places: Places) -> None:
    """Mark storages held at a step's end and those from before it."""
    names = _parameter_names(places)
    for _, path, module in places.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            _mark(tape, parameter, _PARAMETER, clean_name(f"{path}.{name}".removeprefix(".")))
            _mark(tape, parameter.grad, _GRADIENT, names.get(id(parameter), ""))
        for name, buffer in module.named_buffers(recurse=False):
            _mark(tape, buffer, _BUFFER, clean_name(f"{path}.{name}".removeprefix(".")))
        _mark_parallel(tape, module, path)
    for optimizer in list(places.optimizers):
        _mark_states(tape, optimizer, names)
    for record in tape.storages:
        if record.allocated is None and not record.role:
            record.role = _INPUT


def _host_updates(places: Places) -> int:
    """Count the elements of parameters that optimisers hold on the host."""
    parameters = {
        id(parameter): local_tensor(parameter)
        for optimizer in places.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return sum(int(each.numel()) for each in parameters.values() if each.device.type == "cpu")


def _mark_states(tape: Tape, optimizer: Any, names: Mapping[int, str]) -> None:
    """Mark the states of an optimiser, and its parameters, which may be of no module."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _mark(tape, parameter, _PARAMETER, names.get(id(parameter), ""))
    for parameter, state in optimizer.state.items():
        for value in state.values():
            _mark(tape, value, _OPTIMIZER_STATE, names.get(id(parameter), ""))


def _mark_flat(tape: Tape, module: Any, path: str) -> None:
    """Mark what FSDP's first version gathers; a storage keeps its mark when it is resized."""
    handle = module._handle if isinstance(module, FullyShardedDataParallel) else None
    if handle is None:
        return
    for name in _GATHERED_FLAT:
        _mark(tape, getattr(handle.flat_param, name, None), _GATHERED, clean_name(path))


def _mark_parallel(tape: Tape, module: Any, path: str) -> None:
    """Mark buckets of gradients, and whole parameters that FSDP2 gathers and frees again."""
    if isinstance(module, Replicas):
        for buffer in module.bucket_buffers():
            _mark(tape, buffer, _GRADIENT, "DistributedDataParallel's bucket")
    state = _get_module_fsdp_state(module)
    group = None if state is None else state._fsdp_param_group
    for parameter in () if group is None else group.fsdp_params:
        for output in parameter.all_gather_outputs:
            name = clean_name(parameter._param_fqn or path)
            _mark(tape, output, _GATHERED, name)


def _parameter_names(places: Places) -> dict[int, str]:
    return {
        id(parameter): clean_name(f"{path}.{name}".removeprefix("."))
        for _, path, module in places.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
    }


def _mark(tape: Tape, value: Any, role: str, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        return
    record = tape.held(value)
    if record is not None and not record.role:
        record.role, record.name = role, name
