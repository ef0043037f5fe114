"""Print sets of devices briefly."""

from __future__ import annotations

from collections.abc import Iterable


def devices_text(devices: Iterable[int]) -> str:
    """Return devices as ranges.

    >>> devices_text([0, 1, 2, 3, 8, 10, 11]), devices_text([5])
    ('devices 0-3, 8, 10-11', 'device 5')
    """
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == runs[-1][1] + 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    is_one = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"{'device' if is_one else 'devices'} {', '.join(texts)}"
