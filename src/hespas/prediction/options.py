"""The options of a prediction.

`PredictOptions` has a part for each stage. Every field declares its flag, configuration key, help
and default (`hespas.base.fields.Option`); the command line, the configuration reader and the
checks derive from these fields, so that an option is added here, or in the stage's own options
dataclass that is nested here (`hespas.split.options.SplitOptions`,
`hespas.compile.options.CompileOptions`), and nowhere else.

`hespas.prediction.configuration` reads the documented configuration file into values of these
options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from hespas.base.fields import Group, Use, check_options, declare, refuse_unused
from hespas.base.frozen import frozen
from hespas.base.units import parse_quantity
from hespas.compile.options import CompileOptions
from hespas.errors import ConfigError, option
from hespas.frontend.overrides import parse_branch_weights, parse_trip_counts
from hespas.hardware.cluster import Cluster, read_cluster
from hespas.hardware.device import Device, parse_rates
from hespas.hardware.jobs import Placement
from hespas.hardware.system import LinkBandwidth, System, parse_link_bandwidths
from hespas.hardware.variation import EQUAL, Variation, read_variation
from hespas.models.model import PIPE
from hespas.models.placement import Place, parse_place
from hespas.prediction.goodput import TOKENS, GoodputOptions
from hespas.price.methods import (
    CLOCK,
    DEVICE,
    KERNELS,
    LAUNCHES,
    METHODS,
    NODE,
    RooflineOptions,
    default_text,
)
from hespas.program.experts import ExpertOptions
from hespas.program.work import CustomCallCost, parse_custom_calls
from hespas.simulate.options import CHOICES, ContentionModel, Model, parse_choice
from hespas.sources.options import MODEL, ModelOptions, TorchOptions
from hespas.split.options import SplitOptions
from hespas.tasks.pipelining.options import PipelineOptions

# What options of several groups apply to.
LOOPS = Use(": there is no loop whose count can't be read")
BRANCHES = Use(": there is no branch without weights of its own")
SCHEDULE = Use(f": there is no schedule of kernels: see {option('fidelity')}")
COMPILED = Use(
    " on a program that is not compiled",
    f"give the compiled one, or {option('fidelity')} compiled in the place of {option('kernels')}",
)
NOT_COMPILED_AGAIN = Use(" with {}", "drop one of them")
UNCOMPILED = Use(" on a program that is compiled already")
PRICED_WHOLE = Use(
    ": the program is taken as it is given",
    "drop it, or compile the program first: hespas compile",
)
RECORDED = Use(
    ": the program is no recorded step of PyTorch, and no pipeline of eager kernels of libraries"
)
HOST_LINK = Use(": there is nothing that moves to or from the host")
ONE_PROGRAM = Use(" on a pipeline of several programs")
OPEN_STEP = Use(" on a model of the zoo in stages, where it is known")
OPEN_FLOPS = Use(
    " on {}, whose model FLOPs are known",
    f"drop it, or count them in another way with {option('model_flops')}",
)
PEAK_RATES = Use(
    ": the peak rates of the device are not known", f"drop it, or give {option('node')}"
)
POWER = Use(": the power of the device is not known", "drop it, or give tdp_W in the node's file")
PREDICTION = Use(
    " on a measurement, and no prediction is asked for",
    f"drop it, or name the cluster that this is ({option('cluster')})",
)
TEXT = Use(" on JSON, which has all assumptions")


@frozen
class ProgramOptions:
    """The program, and what it leaves open.

    ``file`` is a file, or what else names a program: a model of the zoo, which ``model`` has
    settings for, or ``package.module:function``.
    """

    GROUP: ClassVar[Group] = Group.WORKLOAD

    file: Path | None = declare(
        help="The program, where the argument is a configuration: a file or a model's name.",
        name="mlir_file",
        key="mlir_file",
    )
    devices: int | None = declare(
        help="How many devices, for a program that doesn't say.",
        aliases=("num_npus",),
        key="perf_estimator.hardware.num_npus",
    )
    trip_counts: Mapping[str, int] = declare(
        help="How often loops run whose count can't be read; LINE, or its name in HLO, picks one.",
        name="trip_count",
        parse=parse_trip_counts,
        metavar="[LINE=]N",
        repeats=True,
        default=dict,
        applies_to=(LOOPS, PREDICTION),
    )
    branch_weights: Mapping[str, tuple[float, ...]] = declare(
        help="How often each branch is taken.",
        parse=parse_branch_weights,
        metavar="[LINE=]W,W..",
        repeats=True,
        default=dict,
        applies_to=(BRANCHES, PREDICTION),
    )
    kernels: Path | None = declare(
        help="The kernels of a compiled program, as hespas compile --kernels writes them.",
        applies_to=(KERNELS, COMPILED, NOT_COMPILED_AGAIN),
    )
    model: ModelOptions = field(default_factory=ModelOptions)
    torch: TorchOptions = field(default_factory=TorchOptions)


class Fidelity(Enum):
    """What a prediction prices: see `hespas.program.program.Program.fidelity`.

    ``AUTO`` is the best that can be had: `hespas.prediction.fidelity.planned` decides.
    """

    AUTO = "auto"
    COMPILED = "compiled"
    FUSED = "fused"
    LIBRARY = "library"
    EXPORTED = "exported"


@frozen
class CompileChoice:
    """The fidelity of a prediction, and the compiler's options.

    ``fidelity`` None takes a program as it is given, compiled or not; it is for the API.
    ``as_exported`` and ``optimise`` are other words for two fidelities. Raises `ConfigError` where
    more than one of the three is given.
    """

    GROUP: ClassVar[Group] = Group.COMPILATION

    fidelity: Fidelity | None = declare(
        help="What is priced: the kernels of the node's compiler, those of a model of it, "
        "those of libraries such as Transformer Engine, or each operation by itself.",
        key="fidelity",
        one_of="fidelity",
        default_text="auto, the first of them that can be had",
        default=Fidelity.AUTO,
        applies_to=(UNCOMPILED, PRICED_WHOLE, PREDICTION),
    )
    as_exported: bool = declare(
        help="Price each operation by itself, as the program was exported.",
        one_of="fidelity",
        group=Group.MAIN,
        default=False,
        applies_to=(UNCOMPILED, PRICED_WHOLE, PREDICTION),
    )
    optimise: bool = declare(
        help="The same as --fidelity compiled.",
        one_of="fidelity",
        is_hidden=True,
        default=False,
        applies_to=(UNCOMPILED, PRICED_WHOLE, PREDICTION),
    )
    options: CompileOptions = field(default_factory=CompileOptions)

    __post_init__ = check_options

    @property
    def requested(self) -> Fidelity | None:
        """The fidelity, by whichever option it was requested."""
        if self.as_exported:
            return Fidelity.EXPORTED
        return Fidelity.COMPILED if self.optimise else self.fidelity

    @property
    def words(self) -> str:
        """The user's words for the fidelity, with a marked option."""
        for name in ("as_exported", "optimise"):
            if getattr(self, name):
                return option(name)
        return f"{option('fidelity')} {'' if self.fidelity is None else self.fidelity.value}"


AS_GIVEN = CompileChoice(fidelity=None)
"""The program as it is given, compiled or not."""


class Clocks(Enum):
    """Which clock kernels are priced at.

    ``SUSTAINED`` is what the power limit allows under the whole computation, ``MEASURED`` that of
    the short loops in which tables were measured.
    """

    SUSTAINED = "sustained"
    MEASURED = "measured"


SUSTAINED_CLOCK = Use(f" with {option('clocks')} {Clocks.MEASURED.value}", "drop one")


@frozen
class PowerOptions:
    """The power limit of a device, and its clock.

    Raises `ConfigError` for a limit that would have no effect, or is not positive and finite.
    """

    GROUP: ClassVar[Group] = Group.ESTIMATION
    APPLIES_TO: ClassVar[tuple[Use, ...]] = (CLOCK,)

    power_limit_w: float | None = declare(
        help="The mean power that a device may draw, as in 550W, which its clock follows.",
        aliases=("power_limit",),
        key="perf_estimator.hardware.power_limit_w",
        unit="W",
        applies_to=(SUSTAINED_CLOCK,),
        default_text="its thermal design power",
    )
    clocks: Clocks = declare(
        help="The clock of kernels: what the power limit allows under the whole step, or that "
        "of the short loops that tables were measured in.",
        default=Clocks.SUSTAINED,
    )

    def __post_init__(self) -> None:
        check_options(self)
        refuse_unused(self, {SUSTAINED_CLOCK: self.clocks is Clocks.MEASURED})


@frozen
class EstimateOptions:
    """The estimation method, the device and the cache of prices.

    ``hardware`` is the configuration of the method, decoded from ``configuration``, the file.
    Rates go before those of the node. ``roofline`` is for the API; by default the
    file of the node decides.
    """

    GROUP: ClassVar[Group] = Group.ESTIMATION

    node: Device | Path | str | None = declare(
        help="The device: a preset's name (see hespas hardware), or a configuration's path.",
        metavar="NODE",
        default_text="that of the cluster",
        group=Group.MAIN,
        applies_to=(NODE,),
    )
    method: str | None = declare(
        help=f"Estimation method: {', '.join(METHODS)}.",
        key="perf_estimator.method",
        metavar="METHOD",
        default_text=default_text(),
    )
    hardware: object | None = declare(
        help="The configuration of the method.", key="perf_estimator.hardware", has_flag=False
    )
    configuration: Path | None = declare(help="The file of the configuration.", has_flag=False)
    peak_flops: float | None = declare(
        help="FLOP/s of types that have no rate of their own, as in 9.7TFLOP/s.",
        unit="FLOP/s",
        applies_to=(DEVICE,),
    )
    memory_bandwidth: float | None = declare(
        help="Memory bandwidth, as in 1555GB/s.",
        unit="B/s",
        applies_to=(DEVICE,),
    )
    host_bandwidth: float | None = declare(
        help="Bandwidth between device and host, in each direction, as in 64GB/s.",
        unit="B/s",
        default_text="that of the node",
        applies_to=(HOST_LINK,),
    )
    per_datatype_flops: Mapping[str, float] | None = declare(
        help="FLOP/s by type, as in bf16=312e12.",
        parse=parse_rates,
        metavar="TYPE=RATE,..",
        applies_to=(DEVICE, PREDICTION),
    )
    launch_overhead_s: float | None = declare(
        help="What a kernel of a compiled program takes beside its work, as in 3us.",
        name="launch_overhead",
        unit="s",
        usual_unit="us",
        least=0,
        applies_to=(LAUNCHES, SCHEDULE),
    )
    host_launch_s: float | None = declare(
        help="What PyTorch's host takes to launch a kernel, as in 10us.",
        name="host_launch",
        unit="s",
        usual_unit="us",
        least=0,
        default_text="17.5us, measured beside an H100",
        one_of="host_launch",
        applies_to=(RECORDED,),
    )
    cuda_graphs: bool = declare(
        help="Launch PyTorch's kernels by CUDA graphs.",
        one_of="host_launch",
        default=False,
        applies_to=(RECORDED,),
    )
    custom_calls: Mapping[str, CustomCallCost] = declare(
        help="What an unknown custom call does: traffic, or flops:N,type:T,bytes:N.",
        name="custom_call",
        parse=parse_custom_calls,
        metavar="TARGET=COST",
        repeats=True,
        default=dict,
        applies_to=(PREDICTION,),
    )
    roofline: RooflineOptions | None = declare(
        help="What to do about types without a rate.", has_flag=False
    )
    power: PowerOptions = field(default_factory=PowerOptions)
    disable_cache: bool = declare(
        help="Estimate every region by itself.",
        key="disable_cache",
        one_of="cache",
        group=Group.CACHES,
        default=False,
    )
    in_memory_only_cache: bool = declare(
        help="Keep no estimates on disk.",
        key="perf_estimator.hardware.in_memory_only_cache",
        one_of="cache",
        group=Group.CACHES,
        default=False,
    )
    cache_dir: Path | None = declare(
        help="Where estimates are cached.",
        key="cache_dir",
        one_of="cache",
        default_text="OUTPUT/cache",
        metavar="DIR",
        group=Group.CACHES,
    )
    threads: int = declare(
        help="Estimators that run at a time.",
        aliases=("num_threads",),
        least=1,
        key="num_threads",
        group=Group.CACHES,
        default=1,
    )

    __post_init__ = check_options


_FEWEST_PARAMETERS = 1000
"""A smaller number was meant in millions or billions."""


def parse_parameters(text: str) -> float:
    """Parse a count of parameters.

    B is a billion, as in models' names.

    >>> parse_parameters("8.03B"), parse_parameters("124M")
    (8030000000.0, 124000000.0)
    """
    number = text.strip()
    number = f"{number[:-1]}G" if number.endswith("B") else number
    parameters = float(round(parse_quantity(number, "", location=option("parameters"))))
    if parameters < _FEWEST_PARAMETERS:
        raise ConfigError(
            f"{option('parameters')} is {text!r}",
            hint="give the number of parameters, as in 8.03B or 124M",
        )
    return parameters


@frozen
class StepOptions:
    """A step's inputs and model FLOPs; zoo models know both."""

    GROUP: ClassVar[Group] = Group.WORKLOAD

    tokens: int | None = declare(
        help="Tokens of a step on all devices, for tokens/s of a program.",
        least=1,
        applies_to=(OPEN_STEP,),
    )
    samples: int | None = declare(
        help="Images, or other samples, of a step on all devices.",
        least=1,
        applies_to=(OPEN_STEP,),
    )
    model_flops: float | None = declare(
        help="FLOPs that the model needs for a step on all devices, as in 18PFLOP, for the "
        "model FLOPs utilisation (MFU) of a program.",
        unit="FLOP",
        metavar="FLOP",
        one_of="model_flops",
        applies_to=(PEAK_RATES,),
    )
    parameters: float | None = declare(
        help="Parameters that each token of a training step meets, as in 8.03B, for the MFU of "
        "a program: 6 FLOPs for each and each token.",
        parse=parse_parameters,
        metavar="N",
        one_of="model_flops",
        applies_to=(PEAK_RATES, OPEN_STEP, OPEN_FLOPS, TOKENS),
    )

    __post_init__ = check_options


@frozen
class NetworkOptions:
    """The cluster, and how communication on it is timed."""

    GROUP: ClassVar[Group] = Group.NETWORK

    cluster: System | str | None = declare(
        help="The cluster: COUNTxPART, as in 32xH100_80GB, or a system preset's name.",
        metavar="CLUSTER",
        group=Group.MAIN,
        one_of="system",
    )
    system: System | Path | str | None = declare(
        help="The cluster as a system preset's name (see hespas hardware), or a directory.",
        metavar="SYSTEM",
        one_of="system",
    )
    network: ContentionModel | None = declare(
        help="How transfers share links in ASTRA-sim's model.",
        default_text="congestion-unaware",
        needs="cluster",
    )
    model: Model | None = declare(
        help="Network model: ASTRA-sim's, to the ns, or hespas' own, with streams that overlap "
        "and links that are shared.",
        default_text="hespas where a network is described for it, astra-sim for others and traces",
        needs="cluster",
    )
    algorithm: str | None = declare(
        help="How collectives run in hespas' own model: as the system specifies, by the "
        "fastest algorithm (auto), or all by one where it can run them: "
        f"{', '.join(CHOICES)}.",
        parse=parse_choice,
        metavar="ALGORITHM",
        default_text="specified",
        needs="cluster",
    )
    place: Place | None = declare(
        help="On which dimensions of the network the axes of the mesh lie, the nearest is 0, "
        "as in tp=0,fsdp=0+1,pipe=1.",
        parse=parse_place,
        metavar="AXIS=N,..",
        needs="cluster",
        default_text="the last axis of the mesh nearest; of pipelines as Megatron-Core has it",
        applies_to=(MODEL,),
    )
    link_bandwidth: tuple[LinkBandwidth, ...] = declare(
        help="Bandwidth of the links along a dimension of the network, the nearest is 0: their "
        "own times a factor, as in 1=x0.5, or that of one link, as in 1=25GB/s.",
        parse=parse_link_bandwidths,
        metavar="DIM=RATE",
        repeats=True,
        needs="cluster",
        default=(),
    )
    imperfect: Cluster | None = declare(
        help="What is not perfect: slow devices, bad links, jitter (YAML or JSON).",
        parse=read_cluster,
        metavar="FILE",
        needs="cluster",
        applies_to=(ONE_PROGRAM,),
    )
    jobs: int = declare(
        help="How many jobs of this size share the cluster, each of which has its part of the "
        "devices, and runs the same step.",
        least=1,
        needs="cluster",
        default=1,
    )
    placement: Placement = declare(
        help="How devices are dealt to the jobs: neighbours each, node by node, or device by "
        "device.",
        needs="jobs",
        default=Placement.PACKED,
    )
    variation: Variation = declare(
        help="How much equal devices differ in speed: none, a preset's name, or a file.",
        parse=read_variation,
        metavar="NAME|FILE",
        needs="cluster",
        default_text="none",
        default=EQUAL,
    )

    __post_init__ = check_options


@frozen
class OutputOptions:
    """Where the files of a prediction go."""

    GROUP: ClassVar[Group] = Group.OUTPUT

    directory: Path | None = declare(
        help="Write the files of the run to this directory: regions, prices, traces.",
        name="output",
        aliases=("output_dir", "-o"),
        key="output_dir",
        metavar="DIR",
        group=Group.MAIN,
        applies_to=(ONE_PROGRAM,),
    )
    clean: bool = declare(
        help="Replace another workload's files.", key="clean", needs="output", default=False
    )


@frozen
class ReportOptions:
    """What the tables of a report distinguish."""

    GROUP: ClassVar[Group] = Group.OUTPUT

    depth: int = declare(
        help="How deep the table by module goes: 2 for layers/attention, also in a model.",
        least=1,
        default=2,
    )
    each_layer: bool = declare(
        help="Tell layers apart that differ in their number alone.", default=False
    )
    verbose: bool = declare(
        help="Show all assumptions, not only those that decide most of the step.",
        default=False,
        applies_to=(TEXT,),
    )

    __post_init__ = check_options


@frozen
class EnergyOptions:
    """What adds to a step's energy beside its machines."""

    GROUP: ClassVar[Group] = Group.OUTPUT

    pue: float = declare(
        help="Power usage effectiveness: energy of the site over that of its machines.",
        key="pue",
        unit="",
        least=1,
        metavar="RATIO",
        default=1.0,
        applies_to=(POWER,),
    )

    __post_init__ = check_options


@frozen
class PredictOptions:
    """All options of a prediction, by part.

    >>> options = PredictOptions(network=NetworkOptions(system="A100_SXM_40GB_4GPU"))
    >>> options.compile.requested.value, options.split.strategy.value
    ('auto', 'linear_split')
    """

    program: ProgramOptions = field(default_factory=ProgramOptions)
    experts: ExpertOptions = field(default_factory=ExpertOptions)
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    compile: CompileChoice = field(default_factory=CompileChoice)
    split: SplitOptions = field(default_factory=SplitOptions)
    estimate: EstimateOptions = field(default_factory=EstimateOptions)
    step: StepOptions = field(default_factory=StepOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
    long_run: GoodputOptions = field(default_factory=GoodputOptions)
    energy: EnergyOptions = field(default_factory=EnergyOptions)

    @property
    def is_pipeline(self) -> bool:
        """Whether a model's stages have programs of their own.

        One stage is a pipeline with kernels of libraries, as Megatron-LM has it: weights are whole,
        and sums of gradients and states are divided.
        """
        mesh = self.program.model.mesh
        if mesh is None or PIPE not in mesh.names:
            return False
        return mesh.size(PIPE) > 1 or self.compile.requested is Fidelity.LIBRARY
