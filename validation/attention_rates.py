"""At which rate the reductions of unfused attention would have to run for the published steps.

    python validation/attention_rates.py

Each Llama-like step of docs/data/accuracy.json is compiled for its GPU. Column reductions over the
scores of attention are the kernels about whose rate least is known; what a published time leaves
for them, where all else takes what is predicted, is the rate that the published time asks for.
Beside it stands how much faster an H100 could be than an A100 if every kernel gained what its peak
does: products that of arithmetic, all others that of memory. Needs hespas[gpu]; programs come from
the cache if `python validation/kernel_parts.py` or `hespas validate` has compiled them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hespas.errors import CostError
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.models.catalogue import model_named
from hespas.models.flops import model_flops
from hespas.price.driver import is_kernel
from hespas.price.kernel import COLUMN_REDUCTION, kernel_of
from hespas.price.ptx.kernels import kernel_pricer
from hespas.program.program import Op, shape_of, size_of
from hespas.work.expand import Leaf, expand
from hespas.work.gemm import gemms
from hespas.xla.cpu import use_cpu
from kernel_parts import NODES, Compiled, Point, points, program_of

ROUNDING_S = 0.005
"""Half of what published times are rounded to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the column reductions over attention's scores take of a step, and products do."""

    reductions_s: float
    reductions_bytes: float
    products_s: float
    computation_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A published step, its model's sizes, and what its kernels are predicted to take.

    ``flops`` are those that the model needs on one device.
    """

    point: Point
    scores: Scores
    heads: int
    flops: float

    def utilisation(self, device: Device) -> float:
        """Return the part of the peak that the published time makes of the model's FLOPs."""
        return self.flops / device.rate("bf16") / self.point.measured_s

    def rate_left(self, measured_s: float) -> float:
        """Return the bytes/s of the reductions if all else takes what is predicted."""
        rest_s = self.point.predicted_s - self.scores.reductions_s
        return self.scores.reductions_bytes / (measured_s - rest_s)


def is_over_scores(op: Op, *, heads: int, tokens: int) -> bool:
    """Return whether a kernel is a column reduction of as many elements as attention's scores."""
    if kernel_of(op).category != COLUMN_REDUCTION:
        return False
    least = heads * tokens * tokens
    return any(
        size_of(value) >= least and shape_of(value).count(tokens) > 1
        for value in (*op.operands, *op.results)
    )


def scores_of(made: Compiled, *, heads: int, tokens: int) -> Scores:
    """Return what the kernels of a program take, those of attention's scores apart."""
    estimator = made.estimator
    pricer = kernel_pricer(load_device(NODES[made.gpu]), made.kernels)
    assert pricer is not None  # noqa: S101 - both GPUs are described
    reductions_s = moved = products_s = whole_s = 0.0
    for leaf in expand(made.program.main.body.operations, made.program.functions):
        if (
            not isinstance(leaf, Leaf)
            or leaf.op.traits.runs_nothing
            or leaf.op.kind.startswith("async")
        ):
            continue
        time_s = estimator.time(leaf, is_kernel=is_kernel(leaf.op, made.program)).time_s
        whole_s += time_s
        if leaf.op.kind == "fusion" and is_over_scores(leaf.op, heads=heads, tokens=tokens):
            reductions_s += time_s
            moved += float(leaf.work.bytes_moved)
        elif _is_product(leaf.op):
            products_s += time_s
    return Scores(
        reductions_s=reductions_s,
        reductions_bytes=moved,
        products_s=products_s,
        computation_s=whole_s,
    )


def _is_product(op: Op) -> bool:
    try:
        return bool(gemms(op))
    except CostError:
        return False


def step_of(point: Point) -> Step:
    """Return a step with what its compiled kernels are predicted to take."""
    settings = model_named(point.name).settings
    sizes = settings.sizes
    flops = model_flops(settings)
    assert flops is not None  # noqa: S101 - it is a model of the zoo
    heads = sizes["heads"]
    scores = scores_of(program_of(point), heads=heads, tokens=sizes["sequence"])
    return Step(point=point, scores=scores, heads=heads, flops=flops / settings.parts)


def largest_gain(before: Scores, devices: Mapping[str, Device]) -> float:
    """Return the speed-up if products gain what arithmetic does, all others what memory does."""
    old, new = devices["A100"], devices["H100"]
    products = before.products_s / before.computation_s
    arithmetic = new.rate("bf16") / old.rate("bf16")
    memory = new.memory_bandwidth_bytes_per_s / old.memory_bandwidth_bytes_per_s
    return 1 / (products / arithmetic + (1 - products) / memory)


def _between(low: float, high: float, digits: int) -> str:
    return f"{low:.{digits}f} to {high:.{digits}f}"


def table(steps: Sequence[Step]) -> str:
    """Return a row for each model that both GPUs ran, as Markdown."""
    devices = {gpu: load_device(node) for gpu, node in NODES.items()}
    lines = [
        (
            "| model | heads | MFU, A100 | H100 | speed-up | by peaks "
            "| TB/s of reductions, A100: predicted | asked for | H100: predicted | asked for |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(step.point.name for step in steps):
        of = {step.point.gpu: step for step in steps if step.point.name == name}
        old, new = of["A100"], of["H100"]
        cells = [name, str(new.heads)]
        cells += [f"{100 * of[gpu].utilisation(devices[gpu]):.1f} %" for gpu in NODES]
        before_s, after_s = old.point.measured_s, new.point.measured_s
        least = (before_s - ROUNDING_S) / (after_s + ROUNDING_S)
        most = (before_s + ROUNDING_S) / (after_s - ROUNDING_S)
        cells += [_between(least, most, 2), f"{largest_gain(old.scores, devices):.2f}"]
        for gpu in NODES:
            step = of[gpu]
            predicted = step.scores.reductions_bytes / step.scores.reductions_s
            slowest, fastest = (
                step.rate_left(step.point.measured_s + change_s) / 1e12
                for change_s in (ROUNDING_S, -ROUNDING_S)
            )
            cells += [f"{predicted / 1e12:.2f}", _between(slowest, fastest, 2)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    use_cpu()
    print(table([step_of(each) for each in points()]))


if __name__ == "__main__":
    main()
