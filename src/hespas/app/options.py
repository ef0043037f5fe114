"""The options of ``hespas app``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hespas.base.fields import Group, check_options, declare

PORT = 8642


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    """Where the page is served, and what its processes may take."""

    GROUP: ClassVar[Group] = Group.MAIN

    port: int | None = declare(
        help="The port.", least=1, metavar="N", default_text=f"{PORT}, or a free one"
    )
    host: str = declare(
        help="The address to listen on; others than the loopback let other machines ask.",
        metavar="ADDRESS",
        default="127.0.0.1",
    )
    browser: bool = declare(help="Open a browser.", negatable=True, default=True)
    workers: int | None = declare(
        help="How many questions are answered at a time.",
        least=1,
        metavar="N",
        default_text="one a core, at most 4",
    )
    memory: float = declare(
        help="Memory that a process of the page may address, as in 32GB.",
        unit="B",
        metavar="BYTES",
        default=32e9,
    )
    home: Path | None = declare(
        help="Where uploads and searches live.",
        metavar="DIR",
        default_text="~/.local/share/hespas",
    )

    def __post_init__(self) -> None:
        check_options(self)
