"""The largest numbers that files may hold where the work grows with the number, and whole numbers.

They are far above what systems and programs have, and keep a mistyped figure from running for
hours or filling the memory. docs/reference/limits.md lists them.
"""

from __future__ import annotations

MOST_DEVICES = 1 << 22
"""Devices of a system, a program or a set in a cluster file."""
MOST_CHUNKS = 1 << 16
"""Chunks that a collective is cut into: ``preferred-dataset-splits``."""
MOST_ALGORITHM_CHUNKS = 1 << 24
"""Chunks in the buffers of all ranks of a collective algorithm, and chunks that its steps move."""
MOST_DIGITS = 18
"""Decimal digits of a number that stands in a text: a device, a group, a window of peers."""
MOST_DILATION_CASES = 1 << 22
"""Cases to count a convolution with a dilated input: about its dilation along a dimension, unless
the kernel's dilation has common factors with it."""
MOST_SLICES = 300_000
"""Slices of a timeline: viewers load about as many in seconds. What is more is summarised."""
MOST_KERNEL_STEPS = 1 << 22
"""Steps of a Mosaic kernel's grid, times the rounds of the loops in a step."""


def whole_number(text: str) -> int | None:
    """Return the whole number from 0 on that a text is, with at most `MOST_DIGITS` digits.

    None for any other text: Python reads no number of thousands of digits, and digits of other
    scripts are no figures in a table.

    >>> whole_number("4096"), whole_number("-1"), whole_number("9" * 5000)
    (4096, None, None)
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    return int(text) if is_number else None
