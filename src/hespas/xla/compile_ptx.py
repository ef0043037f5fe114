"""The PTX that XLA writes for the kernels of a module."""

from __future__ import annotations

import re

_ENTRY = re.compile(r"^\.visible \.entry ([\w$.]+)\(", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*(?:\.(?:version|target|address_size)\b.*|//.*|)\n", re.MULTILINE)
_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(\w+)", re.MULTILINE)


def ptx_target(text: str) -> str:
    r"""Return what a PTX module is written for, empty where it doesn't say.

    >>> ptx_target(".version 8.8\n.target sm_90a\n")
    'sm_90a'
    """
    found = _TARGET.search(text)
    return "" if found is None else found[1]


def read_ptx(text: str) -> dict[str, str]:
    r"""Cut a PTX module into its kernels, by name.

    What stands before the first kernel and is not a header (variables, functions) stays with
    each, since each may use it.

    >>> sorted(read_ptx(".version 8.8\n.visible .entry a(\n)\n{ret;}\n"
    ...                 ".visible .entry b(\n)\n{ret;}\n"))
    ['a', 'b']
    """
    entries = list(_ENTRY.finditer(text))
    if not entries:
        return {}
    shared = _HEADER.sub("", text[: entries[0].start()])
    ends = [entry.start() for entry in entries[1:]] + [len(text)]
    return {
        entry[1]: shared + text[entry.start() : end].strip() + "\n"
        for entry, end in zip(entries, ends, strict=True)
    }
