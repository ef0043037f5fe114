"""Record the operations that torch calls, in the program's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from inspect import currentframe
from types import FrameType
from typing import Any

import torch
from torch._C import DispatchKey
from torch._guards import CompileContext, TracingContext
from torch._higher_order_ops.flex_attention import (
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)
from torch._higher_order_ops.wrap import inductor_compiled_code, inductor_compiled_code_impl
from torch._prims.rng_prims import (
    run_and_save_rng_state,
    run_dtensor_rng_op,
    run_with_rng_state,
)
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from hespas.errors import UnsupportedError
from hespas.program.recorded import HostWait, Operation
from hespas.torch.groups import NAMESPACES, Groups, follow_functional, received
from hespas.torch.host import DeviceValues, tensors_in, written_arguments
from hespas.torch.places import Places, user_frame
from hespas.torch.script import NO_DATA, OF_SPARSE
from hespas.torch.tape import Tape
from hespas.torch.unknown import ValueUnknownError

_aten = torch.ops.aten
_attention = _aten.scaled_dot_product_attention.default
_NO_KERNEL = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::_unsafe_view",
        "aten::detach",
        "aten::detach_",
        "aten::lift_fresh",
        "aten::alias",
        "aten::_reinterpret_tensor",
        "aten::resize_",
        "aten::set_",
        "aten::record_stream",
    }
)
"""Operations that launch nothing, besides views."""
_DENSE = {
    flex_attention: sdpa_dense,
    flex_attention_backward: sdpa_dense_backward,
}
"""What torch runs where FlexAttention is not compiled: products, with all scores in memory."""
_CALLING = {
    inductor_compiled_code: inductor_compiled_code_impl,
    run_and_save_rng_state: run_and_save_rng_state.py_kernels[DispatchKey.BackendSelect],
    run_with_rng_state: lambda state, called, *args, **kwargs: called(*args, **kwargs),
    run_dtensor_rng_op: lambda start, end, called, *args, **kwargs: called(*args, **kwargs),
}
"""What calls others: compiled code in one piece, and operations with random numbers, of compiled
code that runs twice and of a DTensor for its part."""
_SYMMETRIC = "symm_mem"
"""The namespace of operations on memory that GPUs share."""
_FUSED = frozenset(
    {
        "fused_all_gather_matmul",
        "fused_all_gather_scaled_matmul",
        "fused_matmul_reduce_scatter",
        "fused_scaled_matmul_reduce_scatter",
    }
)
_ONE_AFTER_THE_OTHER = (
    "communication: asynchronous tensor parallelism is recorded as messages and products one after"
    " the other; on GPUs they overlap piece by piece, and take less time"
)
_OF_OTHERS = DispatchKey.CompositeExplicitAutograd
"""What has the kernels that call other operations, below autograd."""
_OF_PARTS = frozenset({"bitsandbytes::gemm_4bit.default"})
"""Operations of packages that call others, on GPUs too: a product of weights in 4 bits is one of
what was written in 16 before."""
_MASKS = (torch.bool, torch.uint8)
_NOT_OF_DEVICE = ("prim", "profiler", "prims")


class Recorder(TorchDispatchMode):
    """Records into a tape whatever launches kernels; the step runs inside of it."""

    supports_higher_order_operators = True

    def __init__(self, tape: Tape, places: Places, groups: Groups, values: DeviceValues) -> None:
        super().__init__()
        self._tape = tape
        self._places = places
        self._groups = groups
        self._host = values.host
        self._values = values
        self.paused = 0
        self._divided = 0
        # DTensor finds the shape of a whole result with tensors that no kernel computes.
        ShardingPropagator._fake_mode_lock = _Pause(self)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let Dynamo compile inside of the mode."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call an operation, and record it."""
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self._higher_order(func, args, kwargs)
        if any(map(_is_made_of_tensors, types)):
            return NotImplemented
        if self.paused or is_compiling():
            return func(*args, **kwargs)
        return self._called(func, args, kwargs)

    def _higher_order(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Call an operator that takes functions; FlexAttention, uncompiled, computes all pairs."""
        if self.paused or is_compiling():
            return func(*args, **kwargs)
        if func in _CALLING:
            with self:
                return _CALLING[func](*args, **kwargs)
        dense = _DENSE.get(func)
        if dense is None:
            raise UnsupportedError(
                f"what torch.ops.higher_order.{func.name()} runs is not recorded",
                location=self._places.line(),
                hint="write its loops and branches in Python",
            )
        return self._below_autograd(dense, args, kwargs)

    def _below_autograd(
        self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function of operations that autograd does not divide any more."""
        self._divided += 1
        try:
            with self:
                return function(*args, **kwargs)
        finally:
            self._divided -= 1

    def _called(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if self._host.runs(func, args, kwargs):
            return self._host.call(func, args, kwargs)
        is_below_autograd = self._divided or torch.is_inference_mode_enabled()
        if is_below_autograd and _is_composed(func):
            # Elsewhere autograd has divided it before.
            with self:
                return _composed(func, args, kwargs)
        self._places.note_node()
        if func is _aten._local_scalar_dense.default:
            return self._value(args[0])
        if func.namespace in NAMESPACES:
            return self._message(func, args, kwargs)
        if func.namespace == _SYMMETRIC:
            return self._beside_message(func, args, kwargs)
        return self._computed(func, args, kwargs)

    def _computed(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Call an operation that computes, and record it."""
        if operation_name(func) in _OF_PARTS:
            with self:
                return func._op_dk(_OF_OTHERS, *args, **kwargs)
        try:
            result = _shaped(func, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            return self._of_known_shape(func, args, kwargs, error)
        except NotImplementedError as error:
            return self._of_parts(func, args, kwargs, error)
        self._values.note(func, args, kwargs, result, is_routing=self._is_routing(func))
        self._record(func, args, kwargs, result)
        return self._with_data(result)

    def _is_routing(self, func: Any) -> bool:
        """Return whether an operation may choose experts: those of a metric learn nothing."""
        is_learnt = torch.is_grad_enabled() or self._places.is_in_model
        return func is _aten.topk.default and is_learnt

    def _with_data(self, result: Any) -> Any:
        """Return a tensor of the host with its data, where they are known; others as they are."""
        is_of_host = isinstance(result, torch.Tensor) and result.device.type == "cpu"
        known = self._values.of(result) if is_of_host else result
        return known if is_of_host and self._host.is_known(known) else result

    def _of_parts(self, func: Any, args: Any, kwargs: Mapping[str, Any], error: Exception) -> Any:
        """Return the result of the operations that one without shapes calls, if it does."""
        if any(tensor.layout is not torch.strided for tensor in tensors_in((args, kwargs))):
            message, hint = OF_SPARSE
            raise UnsupportedError(message, location=self._places.line(), hint=hint)
        if not _is_composed(func):
            raise UnsupportedError(
                f"torch does not know the shapes of {operation_name(func)} without a GPU",
                location=self._places.line(),
                hint="leave it out of the step, or register its shapes with "
                "torch.library.register_fake",
            ) from error
        with self:
            return _composed(func, args, kwargs)

    def _beside_message(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Record products that are computed piece by piece beside their message, as one after it.

        Without a GPU torch itself has this in their place.
        """
        if func.__name__.split(".")[0] not in _FUSED:
            raise UnsupportedError(
                f"what {operation_name(func)} sends is not recorded",
                location=self._places.line(),
                hint="call collectives of torch.distributed in its place",
            )
        self._places.notes[_ONE_AFTER_THE_OTHER] = None
        return self._below_autograd(partial(func._op_dk, DispatchKey.Meta), args, kwargs)

    def _message(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Call an operation of a process group, and note what its result is known to be."""
        self._values.forget(received(func, args, kwargs))
        result = self._groups.call(func, args, kwargs)
        follow_functional(self._values, func, args, kwargs, result)
        return result

    def _of_known_shape(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], error: Exception
    ) -> Any:
        """Return a result whose shape follows from known values; else raise what needs them."""
        if self._values.decide(func, args, kwargs):
            return self._decided(func, args, kwargs)
        if self._is_of_hosts_values(func, args, kwargs):
            with self:
                return func._op_dk(_OF_OTHERS, *args, **kwargs)
        indices: Sequence[Any] | None = None
        if func is _aten.index.Tensor:
            indices = args[1]
        elif func is _aten.masked_select.default and args[0].shape == args[1].shape:
            indices = args[1:2]
        if indices is not None and _is_of(_SYNCHRONISED_NORMS):
            for index in indices:
                # Every rank has a part of the batch.
                self._values.put(index, torch.ones(index.shape, dtype=index.dtype))
        if indices is None or not all(map(self._is_position, indices)):
            raise self._without_data(f"{operation_name(func)} needs a tensor's values") from error
        with self:
            return _aten.index.Tensor(args[0], list(_positions(indices)))

    def _is_of_hosts_values(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Return whether an operation calls others, by values of the host, as of packed rows."""
        read = [tensor for tensor in tensors_in((args, kwargs)) if tensor.device.type == "cpu"]
        is_known = bool(read) and all(map(self._host.is_known, read))
        return is_known and func.has_kernel_for_dispatch_key(_OF_OTHERS)

    def _decided(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return a result whose shape known values decide, which the host waits for."""
        self._wait_for_value("the step reads a value")
        computed = self._values.computed(func, args, kwargs)
        device = next(tensors_in((args, kwargs))).device

        def without_data(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            result = torch.empty_like(value, device=device)
            self._values.put(result, value)
            return result

        result = tree_map(without_data, computed)
        self._record(func, args, kwargs, result)
        return result

    def _is_position(self, index: Any) -> bool:
        """Return whether an index is none, has integers, or is a mask whose values are known."""
        return index is None or index.dtype not in _MASKS or self._values.of(index) is not index

    def _record(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        outputs = list(tensors_in((result, written_arguments(func, args, kwargs))))
        for output in outputs:
            self._tape.held(output)
        name = operation_name(func)
        if func.is_view or func.namespace in _NOT_OF_DEVICE or name.split(".")[0] in _NO_KERNEL:
            return
        inputs = list(tensors_in(_read(func, args, kwargs)))
        if not any(tensor.device.type == "cuda" for tensor in (*inputs, *outputs)):
            return
        place = self._places.now()
        self._tape.add(
            Operation(
                name=name,
                inputs=self._tape.tensors(inputs),
                outputs=tuple(dict.fromkeys(self._tape.tensors(outputs))),
                arguments=dict(_arguments(func, args, kwargs)),
                stream=self._tape.stream,
                scope=place.scope,
                phase=place.phase,
                place=place.line,
            )
        )
        if _is_blocking_copy(func, inputs, outputs, kwargs):
            stream = self._tape.stream
            self._tape.add(HostWait(stream=stream, reason="copy to the host", place=place.line))

    def _value(self, tensor: torch.Tensor) -> Any:
        """Raise `UnsupportedError`: the tensor is the device's, or computed from what is."""
        if tensor.device.type == "cpu" and _is_in_optimizer():
            # The count of steps, which torch keeps on the host.
            return 1.0
        known = self._values.of(tensor)
        if known is not tensor:
            self._wait_for_value("the step reads a value")
            with unset_fake_temporarily():
                return known.item()
        of_library = _value_of_library(tensor)
        if of_library is not None:
            value, reason = of_library
            self._wait_for_value(reason)
            return value
        self._wait_for_value("the step reads a value")
        raise self._without_data(
            "the step reads a tensor's value (.item(), float(), if, print)", ValueUnknownError
        )

    def _wait_for_value(self, reason: str) -> None:
        place = self._places.now().line
        self._tape.add(HostWait(stream=self._tape.stream, reason=reason, place=place))

    def _without_data(
        self, message: str, kind: type[UnsupportedError] = UnsupportedError
    ) -> UnsupportedError:
        return kind(
            f"{message}, and tensors have no data here",
            location=self._places.line(),
            hint=f"{NO_DATA}; values are known of integers, and of up to 65,536 other elements, "
            'that the script makes on the host and copies (.to("cuda")), and of what follows from '
            "them",
        )


def _positions(indices: Sequence[Any]) -> Iterator[Any]:
    """Yield indices with the positions of masks in their place, as torch's kernels have them."""
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            yield index
        else:
            yield from index.nonzero().unbind(1)


def _is_composed(func: Any) -> bool:
    return func.namespace not in _NOT_OF_DEVICE and func._can_decompose()


def _composed(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an operation that calls others; a device's attention is chosen."""
    if func is _attention and args[0].device.type == "cuda":
        return func._op_dk(DispatchKey.CUDA, *args, **kwargs)
    return func.decompose(*args, **kwargs)


def _shaped(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return an operation's result, without data.

    Compiled code writes results of products into buffers, and torch has the shapes of some, as
    those in 8 bits, only for the operation that makes its result.
    """
    try:
        return func(*args, **kwargs)
    except NotImplementedError:
        out = kwargs.get("out")
        if out is None or not hasattr(func, "overloadpacket"):
            raise
        given = {name: value for name, value in kwargs.items() if name != "out"}
        func.overloadpacket(*args, **given)
        return out


class _Pause(AbstractContextManager[None]):
    """Lets a recorder record nothing inside of it; it may be entered again."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._recorder.paused += 1

    def __exit__(self, *_error: object) -> None:
        self._recorder.paused -= 1


def is_compiling() -> bool:
    """Return whether torch traces or compiles now, and runs nothing."""
    return TracingContext.try_get() is not None or CompileContext.try_get() is not None


def _is_made_of_tensors(kind: type[torch.Tensor]) -> bool:
    """Return whether tensors of a type, as a DTensor, call operations on others."""
    is_plain = kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return not is_plain and not issubclass(kind, FakeTensor)


def operation_name(func: Any) -> str:
    """Return an operation's name, as in ``aten::mm.default``."""
    return str(func).replace(".", "::", 1)


def _arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments that are no tensors, by name."""
    names = [argument.name for argument in func._schema.arguments]
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        if value is None or any(True for _ in tensors_in(value)):
            continue
        yield name, _scalar(value)


def _read(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments but those that hold a result (``out=``)."""
    results = {argument.name for argument in func._schema.arguments if argument.is_out}
    return [*args, *(value for name, value in kwargs.items() if name not in results)]


def _scalar(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.maybe_as_int() if isinstance(value, torch.SymInt) else str(value)
    if isinstance(value, list | tuple):
        return tuple(_scalar(member) for member in value)
    return str(value).removeprefix("torch.")


def _is_blocking_copy(
    func: Any,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    kwargs: Mapping[str, Any],
) -> bool:
    """Return whether the host waits for a copy from the device."""
    if func not in {_aten._to_copy.default, _aten.copy_.default} or kwargs.get("non_blocking"):
        return False
    is_from_device = any(tensor.device.type == "cuda" for tensor in inputs)
    return is_from_device and all(tensor.device.type == "cpu" for tensor in outputs)


def _is_in_optimizer() -> bool:
    return any("/torch/optim/" in frame.f_code.co_filename for frame in _frames())


_SCALE = 65536.0
"""The scale that a GradScaler starts with."""
_SYNCHRONISED_NORMS = "/torch/nn/modules/_functions.py"


def _value_of_library(tensor: torch.Tensor) -> tuple[float | bool, str] | None:
    """Return what a library reads, and its reason; None if the program reads.

    Gradients are finite, DeepSpeed's norms of them are 1, arguments of a distribution valid, and
    samples of ``trunc_normal_`` within its bounds.
    """
    for frame in _frames():
        file = frame.f_code.co_filename
        if file.endswith("/torch/amp/grad_scaler.py"):
            scale = _SCALE if frame.f_code.co_name == "get_scale" else 0.0
            return scale, "GradScaler reads a value"
        if "/torch/distributions/" in file:
            return True, "a distribution checks its arguments"
        if file.endswith("/torch/nn/init.py"):
            return False, "torch.nn.init checks its samples"
    caller = user_frame(currentframe())
    if caller is not None and "/deepspeed/runtime/" in caller.f_code.co_filename:
        return (1.0 if tensor.is_floating_point() else False), "DeepSpeed reads a value"
    return None


def _is_of(file: str) -> bool:
    """Return whether a file of torch calls an operation."""
    return any(frame.f_code.co_filename.endswith(file) for frame in _frames())


def _frames() -> Iterator[FrameType]:
    frame = currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
