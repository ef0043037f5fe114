"""Options of pipeline stages and of hidden communication."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import ClassVar

from hespas.base.fields import Group, Use, declare, parse_pairs
from hespas.base.figures import MOST_DIGITS
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option
from hespas.tasks.pipelining.schedule import NAMES, chunks_named, load_schedule


class Overlap(Enum):
    """Communication that can be hidden, by option names.

    ``TP``: collectives of tensor parallelism under neighbouring products. ``GRADIENTS``: gradient
    sums under the backward passes that follow. ``PARAMETERS``: weight gathers under the forward
    passes before their use. ``MESSAGES``: sends under the stage's next computation.
    ``ACCUMULATION``: gradient accumulation over micro-batches in the products' own writes.
    ``EXPERTS``: all-to-alls of routed experts under the products of shared ones, with and without
    stages. ``EXCHANGES``: the same all-to-alls under a pass of another micro-batch.
    """

    TP = "tp"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    MESSAGES = "messages"
    ACCUMULATION = "accumulation"
    EXPERTS = "experts"
    EXCHANGES = "exchanges"


def parse_overlaps(texts: Iterable[str]) -> dict[str, bool]:
    """Parse ``NAME=on`` or ``NAME=off``, several separated by commas.

    >>> parse_overlaps(["tp=off,gradients=on"])
    {'tp': False, 'gradients': True}
    """
    entries = (text for argument in texts for text in argument.split(","))
    pairs = parse_pairs(entries, name="overlap", form="NAME=on or NAME=off")
    for name, value in pairs.items():
        check_overlap(name, name)
        if value not in {"on", "off"}:
            raise ConfigError(
                f"{option('overlap')} is '{name}={value}'", hint=f"write {name}=on or =off"
            )
    return {name: value == "on" for name, value in pairs.items()}


def check_overlap(name: str, text: str) -> None:
    """Raise `ConfigError` for an unknown name; ``text`` is the user's."""
    names = [overlap.value for overlap in Overlap]
    if name not in names:
        raise ConfigError(f"{option('overlap')} is {text!r}", hint=suggestion(name, names))


_LAYERS = re.compile(rf"(\d{{1,{MOST_DIGITS}}})(?:x(\d{{1,6}}))?")


def parse_stage_layers(text: str) -> tuple[int, ...]:
    """Parse the layers of each part; ``2x3`` means ``2,2,2``.

    Parts follow the order of the model.

    >>> parse_stage_layers("1,2x3,1")
    (1, 2, 2, 2, 1)
    """
    matches = [_LAYERS.fullmatch(part.strip()) for part in text.split(",")]
    if not all(matches) or sum(int(match[2] or 1) for match in matches if match) > _MOST_PARTS:
        raise ConfigError(
            f"{option('stage_layers')} is {text[:60]!r}", hint="write it as in 15,16x6,15"
        )
    return tuple(int(match[1]) for match in matches if match for _ in range(int(match[2] or 1)))


_MOST_PARTS = 1 << 16


def parse_schedule(text: str) -> str:
    """Return a schedule's name or file; `ConfigError` for other text."""
    if not Path(text).is_file():
        chunks_named(text)
    return text


STAGES = Use(" {}", f"drop it, or give {option('mesh')} an axis pipe, as in pipe=4,tp=8")


@frozen
class PipelineOptions:
    """How stages share layers, and in which order they compute.

    ``schedule`` is a name of `hespas.tasks.pipelining.schedule.NAMES`, or a file's.
    """

    GROUP: ClassVar[Group] = Group.PIPELINE
    APPLIES_TO: ClassVar[tuple[Use, ...]] = (STAGES,)

    schedule: str | None = declare(
        help=f"In which order stages compute: {', '.join(NAMES)}, or a file with a line of "
        "passes for each stage.",
        parse=parse_schedule,
        metavar="SCHEDULE",
        default_text="1f1b",
    )
    stage_layers: tuple[int, ...] | None = declare(
        help="Layers of each part of the model, in order, as in 15,16x6,15.",
        parse=parse_stage_layers,
        metavar="N,N..",
        default_text="as many in each, or one fewer beside the embedding and the head",
    )
    overlap: Mapping[str, bool] = declare(
        help="What communication of a pipeline is hidden: "
        f"{', '.join(overlap.value for overlap in Overlap)}; experts without a pipeline, too.",
        parse=parse_overlaps,
        metavar="NAME=on|off,..",
        repeats=True,
        default_text="all on but experts and exchanges; messages off without interleaving, "
        "as in Megatron-Core",
        default=dict,
    )
    ignore_memory: bool = declare(
        help="Predict a pipeline although one of its stages cannot fit into memory.", default=False
    )

    def hides(self, overlap: Overlap) -> bool:
        """Return whether communication is hidden.

        The user's choice decides, else Megatron-Core's.

        Megatron-Core's recipes for large models hide all communication except all-to-alls of
        experts (``--moe-shared-expert-overlap``, ``--overlap-moe-expert-parallel-comm``); a stage
        with one chunk waits for its sends.
        """
        if overlap.value in self.overlap:
            return self.overlap[overlap.value]
        if overlap is not Overlap.MESSAGES:
            return overlap not in {Overlap.EXPERTS, Overlap.EXCHANGES}
        name = self.schedule or DEFAULT
        if self.schedule_is_named:
            return chunks_named(name) > 1 or name == "zero-bubble"
        return load_schedule(Path(name)).chunks > 1

    @property
    def schedule_is_named(self) -> bool:
        """Whether the schedule is a name, not a file."""
        return not Path(self.schedule or DEFAULT).is_file()


DEFAULT = "1f1b"
"""The default schedule."""
