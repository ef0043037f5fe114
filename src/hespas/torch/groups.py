"""Process groups of the cluster's size with one real rank, and collectives.

torch's own fake process group communicates nothing. As in NCCL, an asynchronous collective runs on
its group's own stream, which waits for the current stream; ``Work.wait`` makes the current stream
wait for it. A synchronous collective runs on the current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from hespas.errors import UnsupportedError
from hespas.program.recorded import CollectiveCall
from hespas.torch.host import DeviceValues, named_arguments, written_arguments
from hespas.torch.streams import Streams

NAMESPACES = ("c10d", "_c10d_functional")
_WAIT = "wait_tensor"
_KINDS = {
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "send": "send",
    "isend": "send",
    "recv_": "receive",
    "irecv": "receive",
    "barrier": "barrier",
}
_INPUTS = ("input", "inputs", "input_list", "input_tensor", "input_tensors", "tensor", "tensors")
_OUTPUTS = ("output", "outputs", "output_lists", "output_tensor", "output_tensors", "out")
_FACTORS = {
    dist.ReduceOp.SUM: lambda ranks: ranks,
    dist.ReduceOp.AVG: lambda ranks: 1,
    dist.ReduceOp.MIN: lambda ranks: 1,
    dist.ReduceOp.MAX: lambda ranks: 1,
}
"""By what a reduction over ranks with equal values multiplies them."""
_NAMED_FACTORS = {str(op).rpartition(".")[2].lower(): factor for op, factor in _FACTORS.items()}
_GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_single")
_SPLITS = ("input_split_sizes", "output_split_sizes")
_EXCHANGED = ("output_split_sizes", "input_split_sizes", "group")
"""The arguments of `torch.distributed.all_to_all_single` behind its tensors, in order."""
_PEERS = ("dst", "src")


class _Work(dist.Work):
    """What a collective returns: waiting for it lets the current stream wait."""

    def __init__(self, groups: Groups, events: Sequence[int], tensors: Sequence[Any]) -> None:
        super().__init__()
        self._groups = groups
        self._events = tuple(events)
        self._tensors = list(tensors)

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream wait for the collective."""
        del timeout
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Make the current stream wait for the collective; free its tensors."""
        self._groups.wait(self._events)
        self._tensors = []

    def is_completed(self) -> bool:
        """Return whether it is done."""
        return True

    def is_success(self) -> bool:
        """Return whether it went well."""
        return True

    def get_future(self) -> Any:
        """Return a future that has the collective's tensors."""
        return _Future([self], self._tensors)


class _Future(torch.futures.Future[Any]):
    """Waiting for it lets the current stream wait for collectives."""

    def __init__(self, works: Sequence[_Work], value: Any) -> None:
        super().__init__()
        self.works = tuple(works)
        self.set_result(value)

    def wait(self) -> Any:
        """Let the current stream wait, and return the value."""
        for work in self.works:
            work.synchronize()
        return super().wait()

    def then(self, callback: Any) -> Any:
        """Call a function once the collectives are done."""
        self.wait()
        return super().then(callback)


def _collected(collect: Callable[..., Any]) -> Callable[..., Any]:
    def collected(futures: list[Any]) -> Any:
        if not all(isinstance(each, _Future) for each in futures):
            return collect(futures)
        return _Future([work for each in futures for work in each.works], futures)

    return collected


def _follow_futures() -> None:
    """Let what waits for several collectives wait for each."""
    torch.futures.collect_all = _collected(torch.futures.collect_all)
    torch.futures.wait_all = lambda futures: [each.wait() for each in futures]


@dataclass(slots=True)
class _Batch:
    """Messages that run side by side: the first is on ``stream``, which ``begin`` precedes."""

    stream: int
    begin: int
    others: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class Groups:
    """Records collectives; `install` makes torch's functions make fake groups."""

    streams: Streams
    meshes: list[tuple[tuple[str, int], ...]] = field(
        default_factory=list[tuple[tuple[str, int], ...]]
    )
    _of_groups: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _pending: dict[int, int] = field(default_factory=dict[int, int])
    _coalesced: list[int] | None = None
    _batch: _Batch | None = None
    _works: list[_Work] = field(default_factory=list[_Work])

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operation of a process group, and record it."""
        name = func.__name__.split(".")[0]
        if name == _WAIT:
            # On GPUs it returns the tensor, and without data a new one.
            result = torch.ops.aten.alias.default(args[0])
            record = self.streams.tape.held(args[0])
            event = None if record is None else self._pending.pop(record.number, None)
            if event is not None:
                self.wait([event])
            return result
        kind = _KINDS.get(name)
        if kind is None:
            raise UnsupportedError(
                f"hespas does not know the collective {name}",
                location=self.streams.tape.place().line,
                hint="use all_gather, reduce_scatter, all_reduce, all_to_all or broadcast",
            )
        # Of these torch knows no shapes: they return nothing but a work.
        is_known = _is_functional(func) or not name.endswith("coalesced_")
        result = func(*args, **kwargs) if is_known else None
        given = named_arguments(func, args, kwargs)
        is_functional = _is_functional(func)
        tensors = _cuda_tensors((given, result))
        if not tensors and kind != "barrier":
            # Of the host: another library's, beside the step.
            return result
        event = self._record(kind, given, result, is_functional=is_functional)
        if not is_functional:
            return self._with_work(result, [] if event is None else [event], tensors)
        for tensor in _cuda_tensors(result):
            record = self.streams.tape.held(tensor)
            if record is not None and event is not None:
                self._pending[record.number] = event
        return result

    def wait(self, events: Iterable[int]) -> None:
        """Let the current stream wait for collectives."""
        for event in events:
            self.streams.wait(self.streams.tape.stream, event)

    def _record(
        self, kind: str, given: Mapping[str, Any], result: Any, *, is_functional: bool
    ) -> int | None:
        """Record a collective; return its event unless on this stream."""
        tape = self.streams.tape
        group = _group_of(given)
        current = tape.stream
        is_async = is_functional or bool(given.get("async_op", True))
        members = ranks = tuple(dist.get_process_group_ranks(group))
        is_message = kind in {"send", "receive"}
        if is_message:
            peer = next(given[name] for name in _PEERS if name in given)
            ranks = (dist.get_rank(), ranks[peer])
        stream = self._stream(group, ranks if is_message else ()) if is_async else current
        if stream != current:
            self.streams.wait(stream, self.streams.record(current))
        outputs = _cuda_tensors([given.get(name) for name in _OUTPUTS])
        inputs = _cuda_tensors([given.get(name) for name in _INPUTS])
        if is_functional:
            outputs = outputs or _cuda_tensors(result)
        place = tape.place()
        tape.add(
            CollectiveCall(
                kind=kind,
                ranks=ranks,
                inputs=() if kind == "receive" else tape.tensors(inputs),
                outputs=() if kind == "send" else tape.tensors(outputs or inputs),
                reduction=str(given.get("reduce_op", "")) if is_functional else "",
                splits=_splits(given),
                group=members if is_message else (),
                stream=stream,
                scope=place.scope,
                phase=place.phase,
                place=place.line,
            )
        )
        if stream == current:
            return None
        event = self.streams.record(stream)
        if self._coalesced is not None:
            self._coalesced.append(event)
        if self._batch is not None and stream != self._batch.stream:
            self._batch.others.append(event)
        return event

    def _stream(self, group: Any, pair: tuple[int, ...]) -> int:
        """Return the stream of a group's collectives, or of a message.

        As in NCCL, each pair of ranks has one, and batches have one in which messages run side by
        side.
        """
        if not pair:
            return self._stream_of(group, "collectives")
        if self._coalesced is None:
            return self._stream_of(group, f"messages of {sorted(pair)}")
        if self._batch is None:
            stream = self._stream_of(group, "batches")
            self._batch = _Batch(stream=stream, begin=self.streams.record(stream))
            return stream
        beside = self._stream_of(group, f"message {len(self._batch.others) + 1} of a batch")
        self.streams.wait(beside, self._batch.begin)
        return beside

    def _stream_of(self, group: Any, what: str) -> int:
        key = (group.group_name, what)
        if key not in self._of_groups:
            self._of_groups[key] = self.streams.new_stream()
        return self._of_groups[key]

    def _with_work(self, result: Any, events: Sequence[int], tensors: Sequence[Any]) -> Any:
        """Return an operation's result with our work in the place of its own."""
        work = self._work(events, tensors).boxed()
        return (*result[:-1], work) if isinstance(result, tuple | list) else work

    def _work(self, events: Sequence[int], tensors: Sequence[Any]) -> _Work:
        work = _Work(self, events, tensors)
        # torch holds the C++ part alone.
        self._works.append(work)
        return work

    def end_step(self) -> None:
        """Forget the works of a step."""
        self._works.clear()
        self._pending.clear()

    def start_coalescing(self) -> None:
        """Collect the events of what follows."""
        self._coalesced = []

    def end_coalescing(self) -> _Work:
        """Return the work of all that was called since `start_coalescing`."""
        events, self._coalesced = self._coalesced or [], None
        batch, self._batch = self._batch, None
        if batch is not None:
            for event in batch.others:
                self.streams.wait(batch.stream, event)
        return self._work(events, [])

    def install(self, *, rank: int, world_size: int) -> None:
        """Make process groups fake, and create the default one for several ranks."""
        _replace_groups(rank, world_size)
        _replace_coalescing(self)
        _replace_batches(self)
        _note_meshes(self)
        _exchange_objects(world_size)
        if world_size > 1:
            dist.init_process_group("fake")


def received(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return what a collective writes: its outputs, or else all of its tensors."""
    if _is_functional(func):
        return written_arguments(func, args, kwargs)
    given = named_arguments(func, args, kwargs)
    return [given[name] for name in _OUTPUTS if name in given] or list(given.values())


def follow_functional(
    values: DeviceValues, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> None:
    """Note what is known of a functional collective's result, as `follow_values` does."""
    if not _is_functional(func) or not isinstance(result, torch.Tensor):
        return
    known = values.known(args[0])
    if known is None:
        return
    given = named_arguments(func, args, kwargs)
    match _KINDS.get(func.__name__.split(".")[0]):
        case "all_reduce" if given["reduce_op"] in _NAMED_FACTORS:
            ranks = _group_of(given).size()
            values.scale(result, known, _NAMED_FACTORS[given["reduce_op"]](ranks))
        case "all_gather":
            values.repeat(result, known)
        case "all_to_all":
            values.exchange(result, known, _group_of(given), given["input_split_sizes"])
        case _:
            pass


def _is_functional(func: Any) -> bool:
    return func.namespace == "_c10d_functional"


def follow_values(values: DeviceValues) -> None:
    """Let what is known of a tensor be known after messages: all ranks have the same."""
    _follow_futures()
    reduce, broadcast = dist.all_reduce, dist.broadcast

    @wraps(reduce)
    def reduced(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        known = values.known(tensor)
        work = reduce(tensor, op=op, group=group, async_op=async_op)
        if known is not None and op in _FACTORS:
            values.scale(tensor, known, _FACTORS[op](dist.get_world_size(group)))
        return work

    @wraps(broadcast)
    def sent(tensor: Any, *arguments: Any, **options: Any) -> Any:
        known = values.known(tensor)
        work = broadcast(tensor, *arguments, **options)
        if known is not None:
            values.scale(tensor, known, 1)
        return work

    distributed_c10d.all_reduce = dist.all_reduce = reduced
    distributed_c10d.broadcast = dist.broadcast = sent
    exchanged = _exchanging(dist.all_to_all_single, values)
    distributed_c10d.all_to_all_single = dist.all_to_all_single = exchanged
    for name in _GATHERS:
        gathered = _gathering(getattr(dist, name), values)
        setattr(dist, name, gathered)
        setattr(distributed_c10d, name, gathered)


def _gathering(gather: Callable[..., Any], values: DeviceValues) -> Callable[..., Any]:
    @wraps(gather)
    def gathered(output: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        known = values.known(tensor)
        work = gather(output, tensor, *arguments, **options)
        if known is not None:
            for part in output if isinstance(output, list) else [output]:
                values.repeat(part, known)
        return work

    return gathered


def _exchanging(exchange: Callable[..., Any], values: DeviceValues) -> Callable[..., Any]:
    @wraps(exchange)
    def exchanged(output: Any, tensor: Any, *splits: Any, **options: Any) -> Any:
        known = values.known(tensor)
        work = exchange(output, tensor, *splits, **options)
        if known is not None:
            given = {**dict(zip(_EXCHANGED, splits, strict=False)), **options}
            group = given.get("group") or dist.group.WORLD
            values.exchange(output, known, group, given.get("input_split_sizes"))
        return work

    return exchanged


def _group_of(given: Mapping[str, Any]) -> Any:
    group = given.get("process_group", given.get("group_name"))
    if isinstance(group, str):
        return distributed_c10d._resolve_process_group(group)
    return group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)


def _splits(given: Mapping[str, Any]) -> tuple[int, ...]:
    sizes = next((given[name] for name in _SPLITS if given.get(name)), ())
    return tuple(map(int, sizes))


def _cuda_tensors(values: Any) -> list[Any]:
    return [
        leaf
        for leaf in tree_leaves(values)
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cuda"
    ]


def _exchange_objects(world_size: int) -> None:
    """Exchange Python's objects at once: all ranks have those of this one, and no kernel runs."""

    def gather(objects: list[Any], own: Any, group: Any = None, **_options: Any) -> None:
        objects[:] = [own] * (world_size if group is None else group.size())

    def gather_one(own: Any, objects: list[Any] | None = None, *_to: Any, **_options: Any) -> None:
        if objects is not None:
            objects[:] = [own] * len(objects)

    def broadcast(*_arguments: Any, **_options: Any) -> None:
        return

    # Hosts alone wait for each other with it.
    for space in (dist, distributed_c10d, dist.ProcessGroup):
        space.monitored_barrier = broadcast
    for space in (dist, distributed_c10d):
        space.all_gather_object = gather
        space.gather_object = gather_one
        space.broadcast_object_list = broadcast


def _replace_groups(rank: int, world_size: int) -> None:
    """Make groups of any back end fake; create the default group once."""
    original_init = dist.init_process_group
    original_helper = distributed_c10d._new_process_group_helper

    @wraps(original_init)
    def init(*_arguments: Any, **_options: Any) -> None:
        # A script may do so as well as hespas.
        if not dist.is_initialized():
            store = FakeStore()
            original_init("fake", rank=rank, world_size=world_size, store=store)

    @wraps(original_helper)
    def helper(*arguments: Any, **options: Any) -> Any:
        # Size, own rank, ranks, back end, and what the back end would read.
        options |= {"backend_options": None, "device_id": None}
        return original_helper(*arguments[:3], "fake", *arguments[4:], **options)

    distributed_c10d.init_process_group = dist.init_process_group = init
    distributed_c10d._new_process_group_helper = helper
    distributed_c10d.is_nccl_available = dist.is_nccl_available = lambda: True
    if not hasattr(dist, "ProcessGroupNCCL"):
        distributed_c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = _Nccl


class _Nccl:
    """Stands for ``ProcessGroupNCCL`` in builds without it: no group is one."""

    class Options:
        """Takes what a program asks of NCCL."""

        def __init__(self, *, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace()


def _replace_coalescing(groups: Groups) -> None:
    original = dist.ProcessGroup._start_coalescing

    def start(group: Any, device: Any) -> None:
        original(group, device)
        groups.start_coalescing()

    def end(group: Any, device: Any) -> Any:
        del group, device
        return groups.end_coalescing()

    dist.ProcessGroup._start_coalescing = start
    dist.ProcessGroup._end_coalescing = end


def _replace_batches(groups: Groups) -> None:
    """Let messages of a batch run side by side; a fake back end sends them one by one."""
    original = dist.batch_isend_irecv

    @wraps(original)
    def batch(messages: Any) -> list[dist.Work]:
        groups.start_coalescing()
        original(messages)
        return [groups.end_coalescing()]

    distributed_c10d.batch_isend_irecv = dist.batch_isend_irecv = batch


def _note_meshes(groups: Groups) -> None:
    """Note the axes of device meshes."""
    mesh_class: Any = device_mesh.DeviceMesh
    original = mesh_class.__init__

    @wraps(original)
    def init(mesh: Any, *arguments: Any, **options: Any) -> None:
        original(mesh, *arguments, **options)
        groups.meshes.append(tuple(_axes(mesh)))

    mesh_class.__init__ = init


def _axes(mesh: Any) -> Iterator[tuple[str, int]]:
    for position, size in enumerate(mesh.shape):
        names = mesh.mesh_dim_names
        yield (names[position] if names else f"axis{position}"), int(size)
