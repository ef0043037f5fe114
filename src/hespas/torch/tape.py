"""What is recorded of a step: calls in order, and storages' lifetimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch.distributed.tensor import DTensor

from hespas.program.recorded import Call, RecordedTensor, Storage
from hespas.torch.places import Place

_NOWHERE = Place()


@dataclass(slots=True, kw_only=True)
class HeldStorage:
    """A storage of the device; fields are those of `hespas.program.recorded.Storage`."""

    number: int
    size_bytes: int
    stream: int
    allocated: int | None
    made_at: Place
    freed: int | None = None
    freed_in: str = ""
    role: str = ""
    name: str = ""


@dataclass(slots=True, kw_only=True)
class _Live:
    """A storage that exists: its record, and what tells when it is gone."""

    record: HeldStorage
    reference: ref[Any] | None


@dataclass(slots=True)
class Tape:
    """Calls and storages of the step that is recorded now.

    ``place`` says where the program is, ``stream`` is the current stream's number. What is done
    before `start` is kept only where it lasts. ``live_bytes`` are held now, ``peak_bytes`` were the
    most at a time.
    """

    place: Callable[[], Place] = lambda: _NOWHERE
    stream: int = 0
    calls: list[Call] = field(default_factory=list[Call])
    storages: list[HeldStorage] = field(default_factory=list[HeldStorage])
    is_recording: bool = False
    live_bytes: int = 0
    peak_bytes: int = 0
    _kernels: Counter[str] = field(default_factory=Counter[str])
    _live: dict[int, _Live] = field(default_factory=dict[int, _Live])

    def start(self) -> None:
        """Begin with the next call: what is held now was there before the step."""
        self.calls = []
        self.storages = []
        for live in self._live.values():
            record = live.record
            record.number, record.allocated = len(self.storages), None
            self.storages.append(record)
        self.is_recording = True

    def stop(self) -> None:
        """End the step: what is held now stays after it."""
        self.is_recording = False

    def add(self, call: Call) -> None:
        """Append a call."""
        if self.is_recording:
            self.calls.append(call)

    def kernel_name(self, name: str) -> str:
        """Return a name that no other kernel of the tape has."""
        before = self._kernels[name]
        self._kernels[name] += 1
        return f"{name}_{before}" if before else name

    def held(self, tensor: torch.Tensor) -> HeldStorage | None:
        """Return or create the record of a storage; None on the host."""
        local = local_tensor(tensor)
        if local.device.type != "cuda":
            return None
        storage = local.untyped_storage()
        key = storage._cdata
        live = self._live.get(key)
        if live is None:
            live = _Live(record=self._record(storage.nbytes()), reference=None)
            self._live[key] = live
            live.reference = ref(storage, lambda _: self._free(key, live))
        return live.record

    def resize(self, storage: Any, size_bytes: int) -> None:
        """Record a resized storage: its memory is freed, and other memory allocated."""
        live = self._live.get(storage._cdata)
        if live is None or live.record.size_bytes == size_bytes:
            return
        before = live.record
        self._end(before)
        live.record = self._record(size_bytes)
        live.record.role, live.record.name = before.role, before.name

    def tensors(self, values: Iterable[torch.Tensor]) -> tuple[RecordedTensor, ...]:
        """Return views as they are recorded; those on the host are left out."""
        return tuple(
            recorded
            for value in values
            if isinstance(value, torch.Tensor)
            for recorded in self._recorded(value)
        )

    def _recorded(self, tensor: torch.Tensor) -> Iterable[RecordedTensor]:
        record = self.held(tensor)
        if record is None:
            return
        local = local_tensor(tensor)
        yield RecordedTensor(
            storage=record.number,
            shape=tuple(map(int, local.shape)),
            strides=tuple(map(int, local.stride())),
            dtype=str(local.dtype).removeprefix("torch."),
            offset=int(local.storage_offset()),
        )

    def _record(self, size_bytes: int) -> HeldStorage:
        record = HeldStorage(
            number=len(self.storages),
            size_bytes=int(size_bytes),
            stream=self.stream,
            allocated=len(self.calls) if self.is_recording else None,
            made_at=self.place(),
        )
        self.live_bytes += record.size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        if self.is_recording:
            self.storages.append(record)
        return record

    def _free(self, key: int, live: _Live) -> None:
        if self._live.get(key) is live:
            del self._live[key]
        self._end(live.record)

    def _end(self, record: HeldStorage) -> None:
        self.live_bytes -= record.size_bytes
        if self.is_recording:
            record.freed, record.freed_in = len(self.calls), self.place().phase


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds."""
    while isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return tensor


def recorded_storages(records: Iterable[HeldStorage]) -> tuple[Storage, ...]:
    """Return storages as they are written; activations are what the backward pass frees."""
    return tuple(
        Storage(
            size_bytes=record.size_bytes,
            stream=record.stream,
            allocated=record.allocated,
            freed=record.freed,
            role=record.role or _role(record),
            name=record.name,
            scope=record.made_at.scope,
        )
        for record in records
    )


def _role(record: HeldStorage) -> str:
    is_forward = record.made_at.phase in {"forward", "recompute"}
    return "activation" if is_forward and record.freed_in == "backward" else "temporary"
