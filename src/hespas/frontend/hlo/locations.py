"""Where instructions come from in the user's source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Locations:
    """Reads an instruction's metadata: ``op_name (file:line)``, either alone, or nothing."""

    index: Any
    _frames: dict[int, str] = field(default_factory=dict[int, str])

    def of(self, instruction: Any) -> str:
        """Return the location of an instruction."""
        if not instruction.HasField("metadata"):
            return ""
        metadata = instruction.metadata
        name: str = metadata.op_name
        location = self._location(metadata)
        if not name:
            return location
        return f"{name} ({location})" if location else name

    def _location(self, metadata: Any) -> str:
        if metadata.source_file:
            return f"{metadata.source_file}:{metadata.source_line}"
        frame: int = metadata.stack_frame_id
        known = self._frames.get(frame)
        if known is None:
            known = self._frames[frame] = self._frame(frame)
        return known

    def _frame(self, number: int) -> str:
        """Return a stack frame's file and line: frames, locations and names count from 1."""
        frames, locations = self.index.stack_frames, self.index.file_locations
        if not 0 < number <= len(frames):
            return ""
        at = frames[number - 1].file_location_id
        if not 0 < at <= len(locations):
            return ""
        location, names = locations[at - 1], self.index.file_names
        if not 0 < location.file_name_id <= len(names):
            return ""
        return f"{names[location.file_name_id - 1]}:{location.line}"
