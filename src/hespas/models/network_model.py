"""The settings of networks that are no decoders."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from hespas.base.frozen import frozen
from hespas.errors import ConfigError, refuse
from hespas.models.kernels import FUSED
from hespas.models.model import MeshAxes, check_division
from hespas.models.network import TABLE, Counted, Input, Net, Sample, Shape, Shapes

_EVEN = {"heads", "mlp", TABLE}
"""The dimensions that axes have to divide."""


def writes(design: Any) -> bool:
    """Return whether a network reads a source, then writes tokens serially."""
    return hasattr(design, "decoded")


@frozen
class Learning:
    """A training step; fields mean what those of `hespas.models.language.Training` do.

    What has no effect on a network is None.
    """

    mesh: MeshAxes
    batch: int = 8
    accumulation: int | None = 1
    sequence: int | None = None
    source: int | None = None
    image: int | None = None
    attention: str | None = "auto"
    remat: str | None = "minimal_with_context"
    scan: bool | None = False
    dtype: str = "bf16"
    state_dtype: str = "f32"
    zero: int | None = 0


@frozen
class Inferring:
    """One forward pass."""

    mesh: MeshAxes
    batch: int = 1
    sequence: int | None = None
    image: int | None = None
    attention: str | None = "auto"
    scan: bool | None = False
    dtype: str = "bf16"


@frozen
class Reading:
    """A step that reads sources and makes one token."""

    mesh: MeshAxes
    batch: int = 1
    sequence: int = 1
    source: int | None = None
    attention: str = "auto"
    dtype: str = "bf16"


@frozen
class Writing:
    """A step that makes a token for each text.

    A text has ``context`` tokens. What was read has ``source`` tokens, or as many rows as the model
    has.
    """

    mesh: MeshAxes
    batch: int = 1
    context: int = 128
    source: int | None = None
    attention: str = "auto"
    dtype: str = "bf16"

    @property
    def sequence(self) -> int:
        """The tokens that are computed."""
        return 1


@frozen
class Network:
    """A network and how it is run.

    ``design`` has the functions over a `Net`, its ``inputs``, and ``defaults``: settings of
    training, unless others are given.
    """

    module: ClassVar[str] = "hespas.models.steps.arrays"

    design: Any
    run: Learning | Inferring | Reading | Writing

    @property
    def mesh(self) -> MeshAxes:
        """The mesh that it is divided over."""
        return self.run.mesh

    @property
    def batch(self) -> int:
        """Samples for one data-parallel part of the mesh."""
        return self.run.batch

    @property
    def parts(self) -> int:
        """How many data-parallel parts the mesh has."""
        return self.mesh.size(*self.axes["batch"])

    @property
    def accumulation(self) -> int:
        """In how many rounds the batch is computed."""
        return (self.run.accumulation or 1) if isinstance(self.run, Learning) else 1

    @property
    def sequence(self) -> int | None:
        """The tokens of a sample that are computed, or None."""
        return self.run.sequence if self.design.objective == "tokens" else None

    @property
    def samples_are(self) -> str:
        """What a sample is called."""
        if self.design.objective == "clicks":
            return "samples"
        return "images" if self.sequence is None else "sequences"

    @property
    def dtype(self) -> str:
        """The type that is computed in."""
        return self.run.dtype

    @property
    def state_dtype(self) -> str:
        """The type of weights, and in training of both moments."""
        return self.run.state_dtype if isinstance(self.run, Learning) else self.run.dtype

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of a round's batch, over all parts."""
        return {
            "batch": self.batch * self.parts // self.accumulation,
            "rounds": self.accumulation,
        }

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide a dimension, major first."""
        run = self.run
        labels = {label for weight in self.weights.values() for label, _ in weight.dims}
        divided = labels & {"heads", "mlp", "vocabulary"} if self.design.divides else set[str]()
        axes = dict.fromkeys(sorted(divided), ("tp",))
        if "heads" in axes:
            axes |= {"attended_heads": ("tp",), "attended_kv_heads": ("tp",)}
        data = ("data", "fsdp") if isinstance(run, Learning) else ("data",)
        if TABLE in labels:
            return {TABLE: data, "batch": data}
        if not isinstance(run, Learning):
            return {**axes, "batch": data}
        shared = ("data", "fsdp") if run.zero == 3 else ("fsdp",)
        return {**axes, "batch": data, "embedding": shared}

    @property
    def state_axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide each dimension of states.

        With ZeRO ``data`` does, too.
        """
        run = self.run
        if not isinstance(run, Learning) or not run.zero or run.zero == 3:
            return self.axes
        return self.axes | {"embedding": ("fsdp", "data")}

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What goes in for each sample."""
        inputs = self.design.inputs(self.run)
        # The source of a text was read before.
        return inputs[1:] if isinstance(self.run, Writing) else inputs

    @property
    def weights(self) -> Mapping[str, Any]:
        """The weights by name, with the names of their dimensions."""
        return _all_weights(self.design, self.run).weights

    @property
    def flops(self) -> float:
        """The FLOPs of a sample's forward pass."""
        return _counted(self.design, self.run).flops

    @property
    def caches(self) -> Mapping[str, Any]:
        """The keys that a step reads, by layer."""
        return _counted(self.design, self.run).caches

    def why_not(self, kernels: str) -> str:
        """Return why kernels of `FUSED` cannot compute attention, or ""."""
        if kernels != "cudnn":
            return f"{FUSED[kernels].title} is for decoders here"
        if isinstance(self.run, Writing):
            return f"{FUSED[kernels].title} is not modelled over the cache of a source"
        return FUSED[kernels].why_not(dtype=self.dtype, sequence=0, devices=1)

    def check(self) -> None:
        """Raise `ConfigError` for settings that do not fit each other."""
        run, longest = self.run, getattr(self.design, "longest", None)
        tokens = run.context if isinstance(run, Writing) else run.sequence
        if longest is not None and tokens is not None and tokens > longest:
            raise ConfigError(
                f"{'context' if isinstance(run, Writing) else 'sequence'} = {tokens}: the model "
                f"has positions for {longest} tokens",
                hint=f"give {longest} or less",
            )
        why = self.why_not(run.attention) if run.attention in FUSED else ""
        refuse(why, why, "give attention unfused")
        axes = self.axes
        check_division(self.mesh, {}, axes)
        for weight in self.weights.values():
            sizes = {label: size for label, size in weight.dims if label in _EVEN}
            check_division(self.mesh, sizes, axes)
        refuse(
            self.batch % self.accumulation,
            f"a batch of {self.batch} is not divided by accumulation = {self.accumulation}",
            f"choose a divisor of {self.batch}",
        )
        zero = run.zero if isinstance(run, Learning) else 0
        refuse(
            zero and run.mesh.size("data") == 1,
            f"zero = {zero} divides over the axis data, which the mesh {run.mesh} has not",
            "drop it, or give the mesh an axis data",
        )


def made_of(design: Any, run: Any, net: Net, sample: Sample) -> Any:
    """Return what a step's forward pass makes of samples."""
    if not writes(design):
        return design.forward(net, sample)
    # Keys of a source that was read before are cached.
    source = () if isinstance(run, Writing) else design.encoded(net, sample)
    return design.decoded(net, sample, source)


@cache
def _all_weights(design: Any, run: Any) -> Counted:
    """Count all weights of a network, whatever its step."""
    if not isinstance(run, Writing):
        return _counted(design, run)
    reading = Reading(mesh=run.mesh, sequence=run.context, source=run.source)
    return _counted(design, reading)


@cache
def _counted(design: Any, run: Any) -> Counted:
    is_writing = isinstance(run, Writing)
    sample = {entry.name: Shape((1, *entry.shape)) for entry in design.inputs(run)}
    ops = Shapes(
        cached=run.context if is_writing else 0,
        source=design.rows_of(run) if is_writing else 0,
        is_prompt=isinstance(run, Reading),
    )
    made_of(design, run, Net(ops), sample)
    return ops.counted


def steps_of(design: Any) -> tuple[str, ...]:
    """Return the names of the steps that a network has."""
    return ("training", *(("prefill", "decode") if writes(design) else ("inference",)))


def run_of(design: Any, step: str, mesh: MeshAxes) -> Learning | Inferring | Reading | Writing:
    """Return how a step is run unless one says otherwise."""
    sizes = {name: size for name, size in design.defaults.items() if name != "batch"}
    absent: dict[str, Any] = dict.fromkeys(getattr(design, "absent", ()))
    match step:
        case "training":
            return Learning(mesh=mesh, **design.defaults, **absent)
        case "prefill":
            return Reading(mesh=mesh, source=sizes.get("source"))
        case "decode":
            return Writing(mesh=mesh, source=sizes.get("source"))
        case _:
            return Inferring(mesh=mesh, **sizes, attention=absent.get("attention", "auto"))


def first_run(design: Any) -> Any:
    """Return a step of inference on one device."""
    return run_of(design, steps_of(design)[1], MeshAxes(axes=(("data", 1),)))


def cached_bytes(network: Network) -> tuple[int, int]:
    """Return the cached bytes of a token and a source."""
    design = network.design
    if not writes(design):
        return 0, 0
    heads = design.decoder.attention()
    row = 2 * 2 * design.decoder.layers * heads.count * heads.size
    return row, row * design.rows_of(first_run(design))


def network_parameters(network: Network) -> int:
    """Return how many weights a network has.

    >>> from hespas.models.configured import configured_model
    >>> network_parameters(configured_model("google-bert/bert-large-uncased").settings)
    335174458
    """
    return sum(weight.elements for weight in network.weights.values())
