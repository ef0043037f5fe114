"""The options of ``hespas app``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hespas.base.fields import Group, Use, check_options, declare

PORT = 8642
PAGE = Use(" without the page")
STARTED = Use(" where a process is ended")
RESIDENT = Use(" without a process in the background", "drop it, or add --background")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    """Where the page is served, and what its processes may take."""

    GROUP: ClassVar[Group] = Group.MAIN

    port: int | None = declare(
        help="The port.",
        least=1,
        default_text=f"{PORT}, or a free one",
        applies_to=(PAGE,),
    )
    host: str = declare(
        help="The address to listen on; others than the loopback let other machines ask.",
        metavar="ADDRESS",
        default="127.0.0.1",
        applies_to=(PAGE,),
    )
    browser: bool = declare(
        help="Open a browser.", negatable=True, default=True, applies_to=(PAGE,)
    )
    workers: int | None = declare(
        help="How many questions are answered at a time.",
        least=1,
        default_text="one a core, at most 4; 1 with --background",
        applies_to=(STARTED,),
    )
    memory: float = declare(
        help="Memory that a process of the page may address, as in 32GB.",
        unit="B",
        metavar="BYTES",
        default=32e9,
        applies_to=(PAGE,),
    )
    home: Path | None = declare(
        help="Where uploads and searches live.",
        metavar="DIR",
        default_text="~/.local/share/hespas",
        applies_to=(PAGE,),
    )
    background: bool = declare(
        help="Start a process that answers the user's commands, instead of the page.",
        one_of="process",
        default=False,
    )
    stop: bool = declare(help="End that process.", one_of="process", default=False)
    idle_s: float = declare(
        name="idle",
        help="After how long without a command that process ends, as in 30min.",
        unit="s",
        default=3600.0,
        applies_to=(RESIDENT,),
    )

    def __post_init__(self) -> None:
        check_options(self)
