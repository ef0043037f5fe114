"""CUDA's streams and events, which the recorder sees."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from hespas.program.recorded import HostWait, RecordEvent, WaitEvent
from hespas.torch.tape import Tape

_CUDA_TYPE = 1
"""``c10::DeviceType::CUDA``."""


@dataclass(slots=True)
class Streams:
    """The device's streams: which is current, and what waits for what."""

    tape: Tape
    current: Any = None
    _events: count[int] = field(default_factory=count)
    _numbers: count[int] = field(default_factory=count)

    def new_stream(self) -> int:
        """Return the number of a new stream; the default stream is the first, 0."""
        return next(self._numbers)

    def set_current(self, stream: Any) -> None:
        """Run what follows on a stream."""
        self.current = stream
        self.tape.stream = stream.stream_id

    def record(self, stream: int) -> int:
        """Record an event on a stream, and return its number."""
        event = next(self._events)
        self.tape.add(RecordEvent(stream=stream, event=event))
        return event

    def wait(self, stream: int, event: int) -> None:
        """Let a stream wait for an event."""
        self.tape.add(WaitEvent(stream=stream, event=event))

    def host_wait(self, stream: int | None, reason: str, *, event: int | None = None) -> None:
        """Let the host wait for an event, for a stream, or for all."""
        line = self.tape.place().line
        self.tape.add(HostWait(stream=stream, event=event, reason=reason, place=line))


class Event:
    """Stands for ``torch.cuda.Event``; subclasses have the `Streams` that they record into."""

    streams: Streams

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        self.event_id: int | None = None

    def record(self, stream: Any = None) -> None:
        """Record what a stream has to do before."""
        of = self.streams.current if stream is None else stream
        self.event_id = self.streams.record(of.stream_id)

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait; CUDA ignores it for an event that was never recorded."""
        of = self.streams.current if stream is None else stream
        if self.event_id is not None:
            self.streams.wait(of.stream_id, self.event_id)

    def synchronize(self) -> None:
        """Let the host wait; CUDA doesn't for an event that was never recorded."""
        if self.event_id is not None:
            self.streams.host_wait(None, "torch.cuda.Event.synchronize", event=self.event_id)

    def query(self) -> bool:
        """Return whether the event has happened."""
        return True

    def elapsed_time(self, end: Any) -> float:
        """Return 1 ms: a recording has no clock."""
        del end
        return 1.0


class Stream:
    """Stands for ``torch.cuda.Stream``."""

    streams: Streams
    event: type[Event]

    def __init__(self, device: Any = None, priority: int = 0, **_options: Any) -> None:
        del device
        self.stream_id = self.cuda_stream = self.streams.new_stream()
        self.priority = priority
        self.device, self.device_index = torch.device("cuda", 0), 0
        self.device_type = _CUDA_TYPE
        self._outer: list[Any] = []

    def wait_event(self, event: Any) -> None:
        """Wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Wait for what another stream has to do now."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """Record an event, and return it."""
        recorded = self.event() if event is None else event
        recorded.record(self)
        return recorded

    def synchronize(self) -> None:
        """Let the host wait for all of the stream."""
        self.streams.host_wait(self.stream_id, "torch.cuda.Stream.synchronize")

    def query(self) -> bool:
        """Return whether the stream is done."""
        return True

    def __enter__(self) -> Any:
        self._outer.append(self.streams.current)
        self.streams.set_current(self)
        return self

    def __exit__(self, *_error: object) -> None:
        self.streams.set_current(self._outer.pop())


@contextmanager
def on_stream(stream: Any) -> Generator[None]:
    """Run on a stream (``torch.cuda.stream``); None is the current one."""
    if stream is None:
        yield
        return
    with stream:
        yield


def stream_functions(streams: Streams) -> Mapping[str, Callable[..., Any]]:
    """Return what stands for classes and functions of ``torch.cuda``, by name."""
    event = type("Event", (Event,), {"streams": streams})
    stream = type("Stream", (Stream,), {"streams": streams, "event": event})
    default = stream()
    streams.set_current(default)
    return {
        "Stream": stream,
        "Event": event,
        "current_stream": lambda device=None: streams.current,
        "default_stream": lambda device=None: default,
        "stream": on_stream,
        "set_stream": streams.set_current,
        "synchronize": lambda device=None: streams.host_wait(None, "torch.cuda.synchronize"),
    }
