"""Options of models, MaxText and PyTorch, as fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

from hespas.base.fields import Group, Use, declare, parse_pairs
from hespas.base.frozen import frozen
from hespas.errors import ConfigError, option
from hespas.models.model import MeshAxes, Part, parse_mesh
from hespas.models.software import SOFTWARE, software_named


def parse_software(text: str) -> str:
    """Return the name of a known framework."""
    software_named(text)
    return text


MAXTEXT = Use(" on {}", "drop it: only steps of MaxText have it")
MODEL = Use(" on {}", "drop it: only models of the zoo have it")
TORCH = Use(" on {}", "drop it: only steps of PyTorch have it")


@frozen
class ModelOptions:
    """Options of a zoo model; None keeps its own.

    ``batch`` counts sequences or images of one data-parallel part of the mesh, ``global_batch``
    those of all parts. ``part`` is a part of the model, None for all of it. ``settings`` are
    further settings of the model: numbers become text, as on the command line. Raises `ConfigError`
    for what is neither.
    """

    GROUP: ClassVar[Group] = Group.MODEL
    APPLIES_TO: ClassVar[tuple[Use, ...]] = (MODEL,)

    mesh: MeshAxes | None = declare(
        help="The devices that a model is divided over, as in fsdp=8,tp=4.",
        parse=parse_mesh,
        metavar="AXIS=N,..",
        default_text="the model's first axis over all, fsdp as far as it divides the model",
        group=Group.MAIN,
    )
    batch: int | None = declare(
        help="Sequences or images per data-parallel part of the mesh.",
        default_text="the model's",
        one_of="batch",
    )
    global_batch: int | None = declare(
        help="Sequences or images of a step, over all parts of the mesh.", one_of="batch"
    )
    micro_batch: int | None = declare(
        help="Sequences per part that are computed at a time: gradients are accumulated over "
        "the batch.",
        default_text="the batch; in a pipeline one",
        one_of="micro_batch",
    )
    micro_batches: int | None = declare(
        help="In how many micro-batches the batch of a part is computed.", one_of="micro_batch"
    )
    sequence: int | None = declare(help="Tokens in a sequence.")
    attention: str | None = declare(
        help="How attention is computed: unfused, by cudnn or flash (fused, on NVIDIA's GPUs; "
        "flash2 and flash_triton are earlier kernels), by splash (on TPUs), by flashmla (over "
        "latent vectors: decode steps, and prompts with an index), or auto: fused where a large "
        "model's node has it.",
        metavar="KERNEL",
        default_text="auto",
    )
    remat: str | None = declare(help="What the backward pass computes again.", metavar="POLICY")
    scan: bool | None = declare(
        help="One loop over the layers, or all written out.", negated="unrolled"
    )
    dtype: str | None = declare(help="The type that is computed in, as in bf16.", metavar="TYPE")
    settings: Mapping[str, str] = declare(
        help="Another setting of the model (hespas export --list shows them).",
        name="set",
        parse=partial(parse_pairs, name="set", form="NAME=VALUE"),
        metavar="NAME=VALUE",
        repeats=True,
        default=dict,
    )
    prefill: bool = declare(
        help="The step that takes in prompts, in the place of training.",
        one_of="step",
        default=False,
    )
    decode: bool = declare(
        help="The step that makes a token for each sequence, in the place of training.",
        one_of="step",
        default=False,
    )
    software: str | None = declare(
        help="The framework whose kernels of libraries and recomputation a training step has: "
        f"{', '.join(SOFTWARE)}.",
        metavar="NAME",
        parse=parse_software,
    )
    part: Part | None = declare(help="A part of the model, for a pipeline.", has_flag=False)

    def __post_init__(self) -> None:
        texts = {name: _text(name, value) for name, value in self.settings.items()}
        object.__setattr__(self, "settings", texts)

    def texts(self) -> dict[str, str]:
        """Return the set settings by the model's names, as text.

        ``global_batch``, ``micro_batch`` and ``micro_batches`` are no settings of models: they need
        the mesh. Raises `ConfigError` for a setting that is set twice.

        >>> ModelOptions(batch=2, scan=True, settings={"layers": "4"}).texts()
        {'batch': '2', 'scan': 'true', 'layers': '4'}
        """
        options = {
            "mesh": self.mesh,
            "batch": self.batch,
            "sequence": self.sequence,
            "attention": self.attention,
            "remat": self.remat,
            "scan": None if self.scan is None else str(self.scan).lower(),
            "dtype": self.dtype,
        }
        texts = {name: str(value) for name, value in options.items() if value is not None}
        for name in texts.keys() & self.settings.keys():
            raise ConfigError(
                f"{option(name)} and {option('set')} {name} are both given", hint="keep one"
            )
        return {**texts, **self.settings}

    @property
    def step(self) -> str:
        """The requested step of a model, or ""."""
        return "prefill" if self.prefill else "decode" if self.decode else ""


def _text(name: str, value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case _:
            raise ConfigError(f"{option('set')} {name} is {value!r}", hint="give text or a number")


NO_MODEL_OPTIONS = ModelOptions()


@frozen
class MaxTextOptions:
    """The target and the interpreter of MaxText's step.

    The target is a cluster, or a device and a topology.
    """

    GROUP: ClassVar[Group] = Group.MAXTEXT
    APPLIES_TO: ClassVar[tuple[Use, ...]] = (MAXTEXT,)

    cluster: str | None = declare(
        help="The cluster, as in 256xH200_141GB, of a step of MaxText or PyTorch.",
        one_of="target",
        metavar="COUNTxPART",
    )
    target: str | None = declare(help="The GPU or TPU, as in H100_SXM or TPUv6e.", one_of="target")
    topology: str | None = declare(
        help="Chips of a TPU slice, as in 2x4.", default_text="by the devices"
    )
    python: Path | None = declare(
        help="The interpreter that has MaxText.",
        default_text="what HESPAS_MAXTEXT_PYTHON names, or hespas' own",
    )


def parse_version(text: str) -> str:
    """Parse a version of torch; raise `ConfigError` for other texts.

    >>> parse_version("2.6")
    '2.6'
    """
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", text):
        raise ConfigError(
            f"{option('torch_version')} is {text!r}", hint="write two or three numbers, as in 2.6"
        )
    return text


@frozen
class TorchOptions:
    """How a step of PyTorch is recorded."""

    GROUP: ClassVar[Group] = Group.TORCH
    APPLIES_TO: ClassVar[tuple[Use, ...]] = (TORCH,)

    eager: bool = declare(help="Let torch.compile change nothing.", default=False)
    torch_version: str | None = declare(
        help="The torch that runs the step: it decides which attention kernels are called.",
        parse=parse_version,
        metavar="VERSION",
        default_text="the installed one",
    )


NO_TORCH_OPTIONS = TorchOptions()
