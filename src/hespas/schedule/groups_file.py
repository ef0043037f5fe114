"""Read and write ``comm_group.json``: the groups of devices that traces refer to by number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from hespas.errors import TraceError

Group = tuple[int, ...]


def write_groups(groups: Mapping[int, Group], file: Path) -> None:
    """Write the groups by number."""
    table = {str(number): group for number, group in groups.items()}
    file.write_text(json.dumps(table) + "\n", "utf-8")


def read_groups(file: Path, device_count: int) -> dict[int, Group]:
    """Return the groups by number.

    Raises `TraceError` if the file isn't JSON of the form ``{"<number>": [devices]}``, if a
    number isn't positive, or if a group is empty or names a device twice or one that is absent.
    """
    location = str(file)
    try:
        table = cast("object", json.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise TraceError(f"the groups cannot be read: {error}", location=location) from error
    if not isinstance(table, dict):
        raise TraceError("the groups are not a JSON object", location=location)
    entries = cast("dict[str, object]", table).items()
    return dict(_read_group(name, members, device_count, location) for name, members in entries)


def _read_group(name: str, members: object, device_count: int, location: str) -> tuple[int, Group]:
    location = f"{location}: group {name!r}"
    if not (name.isascii() and name.isdigit() and int(name) > 0):
        raise TraceError("the name is not a positive number", location=location)
    if not isinstance(members, list) or not members:
        raise TraceError("the members are not a list of devices", location=location)
    group = cast("list[object]", members)
    for device in group:
        if type(device) is not int or not 0 <= device < device_count:
            message = f"{device!r} is not one of the {device_count} devices"
            raise TraceError(message, location=location)
    if len(set(group)) != len(group):
        raise TraceError("a device is named twice", location=location)
    return int(name), cast("Group", tuple(group))
