"""Figures, goals, constraints, prices, and the order of rows.

Python's parser reads a constraint, and nothing runs it: ``memory.fits and mesh.tp <= 8`` has
fields, numbers, texts, comparisons, ``and``, ``or``, ``not``, ``in`` with a list, and arithmetic. A
field that is not known yet makes the answer None, unless the other parts decide it.

Prices are user data, each with its source: a YAML list of ``part``, ``usd_per_device_hour`` and
``source``, or CSV with these columns. hespas has none of its own.
"""

from __future__ import annotations

import ast
import csv
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast

from hespas.base.decode import decode, read_text, read_yaml
from hespas.base.figures import Positive, Text
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.base.units import format_amount, format_energy, format_quantity, format_time
from hespas.errors import ConfigError, HardwareError
from hespas.hardware.presets import node_name

Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | None"
_LONGEST = 2000
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
}
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_NODES = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.List, ast.Tuple),
    *(ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare),
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.Load, *_COMPARISONS, *_ARITHMETIC),
)
"""The syntax nodes that an expression may consist of."""


@frozen
class Constraint:
    """A condition on candidates; an empty one always holds."""

    text: str
    tree: ast.expr | None = field(default=None, compare=False, repr=False)

    @property
    def fields(self) -> tuple[str, ...]:
        """The distinct fields that it names."""
        return () if self.tree is None else tuple(dict.fromkeys(_fields(self.tree)))

    def check(self, fields: Mapping[str, object], *, location: str = "") -> None:
        """Raise `ConfigError` for a field that is not among ``fields``."""
        for name in self.fields:
            if name not in fields:
                raise ConfigError(
                    f"where names {name!r}, which is no field",
                    location=location,
                    hint=suggestion(name, fields),
                )

    def holds(self, values: Mapping[str, Value]) -> bool | None:
        """Return whether the constraint holds, if known.

        None is unknown: ``values`` lack a field that decides. Raises `ConfigError` if values can't
        be compared.

        >>> read_constraint("memory.fits and mesh.tp <= 8").holds({"mesh.tp": 16})
        False
        >>> read_constraint("memory.fits and mesh.tp <= 8").holds({"mesh.tp": 4}) is None
        True
        """
        if self.tree is None:
            return True
        try:
            truth = _value(self.tree, values)
        except (TypeError, ArithmeticError) as error:
            raise ConfigError(f"where: {self.text}: {error}") from error
        return None if truth is None else bool(truth)


EVERYTHING = Constraint(text="")


def read_constraint(text: str, *, location: str = "") -> Constraint:
    """Read an expression.

    Raises `ConfigError` if it is malformed or has other parts.

    >>> read_constraint("remat in ['full', 'none']").fields
    ('remat',)
    >>> read_constraint("open('file')")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: where: open('file') is more than a comparison of fields; \
use fields, numbers, texts, and, or, not, in, comparisons and + - * /
    """
    if len(text) > _LONGEST:
        raise ConfigError(
            f"where has {len(text)} characters", location=location, hint=f"use at most {_LONGEST}"
        )
    if not text.strip():
        return EVERYTHING
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"where: {text} is no expression",
            location=location,
            hint="write it as in memory.fits and mesh.tp <= 8",
        ) from error
    for node in ast.walk(tree):
        is_plain = not isinstance(node, ast.Constant) or isinstance(node.value, str | int | float)
        is_odd = isinstance(node, ast.Attribute) and not isinstance(
            node.value, ast.Name | ast.Attribute
        )
        if not isinstance(node, _NODES) or not is_plain or is_odd:
            part = ast.unparse(node) if isinstance(node, ast.expr) else text
            raise ConfigError(
                f"where: {part} is more than a comparison of fields",
                location=location,
                hint="use fields, numbers, texts, and, or, not, in, comparisons and + - * /",
            )
    return Constraint(text=text, tree=tree)


def _fields(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node)
        return
    for child in ast.iter_child_nodes(node):
        yield from _fields(child)


def _value(  # noqa: C901, PLR0911 - one case for each kind of node
    node: ast.expr, values: Mapping[str, Value]
) -> Value:
    match node:
        case ast.Constant(value=str() | int() | float() as constant):
            return constant
        case ast.Name() | ast.Attribute():
            return values.get(ast.unparse(node))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return tuple(_value(part, values) for part in parts)
        case ast.BoolOp(op=ast.And(), values=parts):
            return _all([_value(part, values) for part in parts])
        case ast.BoolOp(values=parts):
            return _not(_all([_not(_value(part, values)) for part in parts]))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _not(_value(operand, values))
        case ast.UnaryOp(operand=operand):
            number = _number(_value(operand, values))
            return None if number is None else -number
        case ast.BinOp(left=left, op=sign, right=right):
            first, second = (_number(_value(side, values)) for side in (left, right))
            if first is None or second is None:
                return None
            return _ARITHMETIC[type(sign)](first, second)
        case ast.Compare():
            return _compare(node, values)
        case _:
            raise TypeError(f"{ast.unparse(node)} is no part of a constraint")


def _compare(node: ast.Compare, values: Mapping[str, Value]) -> bool | None:
    operands = [_value(operand, values) for operand in (node.left, *node.comparators)]
    results: list[Value] = []
    for kind, (first, second) in zip(node.ops, pairwise(operands), strict=True):
        is_known = first is not None and second is not None
        if isinstance(kind, _ORDERED) and (isinstance(first, bool) or isinstance(second, bool)):
            raise TypeError("true and false have no order")
        results.append(bool(_COMPARISONS[type(kind)](first, second)) if is_known else None)
    return _all(results)


def _all(parts: list[Value]) -> bool | None:
    """Return whether all parts hold; one that fails decides."""
    if any(part is not None and not part for part in parts):
        return False
    return None if any(part is None for part in parts) else True


def _not(value: Value) -> bool | None:
    return None if value is None else not value


def _number(value: Value) -> float | None:
    if isinstance(value, str | tuple):
        raise TypeError(f"{value!r} is no number")
    return value


_T = TypeVar("_T")
Figures = Mapping[str, float | None]
"""Predicted figures of a candidate by name; None if unknown."""


class Direction(Enum):
    """The direction in which a figure is better."""

    MAXIMISE = "maximise"
    MINIMISE = "minimise"


_UP, _DOWN = Direction.MAXIMISE, Direction.MINIMISE


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its unit and its ``title`` in tables.

    A figure that can be a goal is ``better`` in a direction. ``follows_time`` says that a longer
    step never makes it better: a lower bound of the step's time bounds it. ``needs`` lists the
    study's keys that a goal needs. Those ``of_report`` have the same name in
    `hespas.prediction.figures.schema.RunReport`. ``by_work`` names the figure to compare steps of
    different work by, where this one is of a whole step.
    """

    unit: str = ""
    better: Direction | None = None
    title: str = ""
    follows_time: bool = False
    needs: tuple[str, ...] = ()
    of_report: bool = False
    by_work: str = ""


_RATE = "tokens_per_s_per_device"
FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "step_time_s": Figure("s", _DOWN, "step", follows_time=True, of_report=True, by_work=_RATE),
        "tokens_per_s_per_device": Figure(
            "", _UP, "tokens/s/device", follows_time=True, of_report=True
        ),
        "peak_memory_bytes": Figure("B", _DOWN, "memory", of_report=True),
        "memory_capacity_bytes": Figure("B", of_report=True),
        "devices": Figure("devices", _DOWN, "devices", of_report=True),
        "tokens_per_s": Figure("", _UP, "tokens/s", follows_time=True, of_report=True),
        "samples_per_s": Figure("", _UP, "samples/s", follows_time=True, of_report=True),
        "mfu": Figure("%", _UP, "MFU", follows_time=True, of_report=True),
        "compute_s": Figure("s", _DOWN, "compute", of_report=True, by_work=_RATE),
        "communication_s": Figure("s", _DOWN, "communication", of_report=True, by_work=_RATE),
        "exposed_communication_s": Figure("s", _DOWN, "exposed", of_report=True, by_work=_RATE),
        "stage_wait_s": Figure("s", _DOWN, "waits for stages", of_report=True, by_work=_RATE),
        "energy_j": Figure("J", _DOWN, "energy", by_work="energy_j_per_token"),
        "energy_j_per_token": Figure("J", _DOWN, "energy/token"),
        "usd_per_step": Figure(
            "USD each",
            _DOWN,
            "USD/step",
            follows_time=True,
            needs=("prices",),
            by_work="usd_per_mtoken",
        ),
        "usd_per_mtoken": Figure(
            "USD each", _DOWN, "USD/Mtoken", follows_time=True, needs=("prices",)
        ),
        "goodput": Figure("%", _UP, "goodput", needs=("goodput",)),
        "tokens_per_day": Figure("", _UP, "tokens/day", needs=("goodput",)),
        "usd_per_day": Figure("", _DOWN, "USD/day", needs=("prices", "goodput")),
        "expected_step_time_s": Figure(
            "s", _DOWN, "expected step", needs=("variation",), by_work=_RATE
        ),
        "played_goodput_p5": Figure("%", _UP, "goodput, 5 %", needs=("run_days",)),
        "played_tokens_per_day_p5": Figure("", _UP, "tokens/day, 5 %", needs=("run_days",)),
        "played_energy_j": Figure("J", _DOWN, "energy of the run", needs=("run_days",)),
        "days": Figure("days", _DOWN, "days", needs=("train_tokens",)),
        "usd": Figure("", _DOWN, "USD", needs=("prices", "train_tokens")),
        "screened_step_time_s": Figure("s"),
        "screened_peak_memory_bytes": Figure("B"),
        "least_step_time_s": Figure("s"),
        "least_memory_bytes": Figure("B"),
        "memory_limit_slop_factor": Figure(),
    }
)
"""``least`` figures are bounds, ``screened`` ones the compiler model's.

The model of the compiler gave them before the compiler ran. The last is the value of XLA's flag
that a candidate needs if it may be raised.
"""
GOALS: Mapping[str, Direction] = MappingProxyType(
    {name: figure.better for name, figure in FIGURES.items() if figure.better is not None}
)
"""The figures that can be a goal, each with its better direction."""


_PLAIN = Figure()
_FORMATS: Mapping[str, Callable[[float], str]] = {
    "": lambda value: format_amount(value).strip(),
    "%": lambda value: f"{100 * value:.1f} %",
    "devices": lambda value: str(round(value)),
    "days": lambda value: f"{value:.1f}",
    "s": format_time,
    "J": format_energy,
    "B": lambda value: format_quantity(value, "B"),
    "USD each": lambda value: f"{value:.4g}",
}
"""Formatters of figures, by unit."""


def figure_text(name: str, value: float | None) -> str:
    """Return a figure with its unit; empty if unknown.

    >>> figure_text("step_time_s", 0.25), figure_text("mfu", 0.4217), figure_text("devices", 8)
    ('250 ms', '42.2 %', '8')
    """
    return "" if value is None else _FORMATS[FIGURES.get(name, _PLAIN).unit](value)


@frozen
class Goal:
    """Figures with their directions: one, or several to trade off."""

    metrics: tuple[tuple[str, Direction], ...]

    @property
    def is_single(self) -> bool:
        """Whether there is one figure, by which rows are ordered."""
        return len(self.metrics) == 1

    @property
    def text(self) -> str:
        """The goal in words."""
        texts = [f"{way.value} {name}" for name, way in self.metrics]
        return texts[0] if self.is_single else "pareto: " + ", ".join(texts)

    def keys(self, figures: Figures) -> tuple[float, ...]:
        """Return figures as numbers, lower is better, unknown last."""
        keys: list[float] = []
        for name, way in self.metrics:
            value = figures.get(name)
            if value is None:
                keys.append(float("inf"))
            else:
                keys.append(-value if way is _UP else value)
        return tuple(keys)

    def to_dict(self) -> dict[str, object]:
        """Return the goal as a study's file writes it."""
        if self.is_single:
            name, way = self.metrics[0]
            return {way.value: name}
        return {"pareto": [name for name, _ in self.metrics]}


FASTEST = Goal(metrics=(("step_time_s", Direction.MINIMISE),))
"""The default goal of a study."""


def read_goal(value: object, *, location: str = "") -> Goal:
    """Read ``{maximise: NAME}``, ``{minimise: NAME}`` or ``{pareto: [NAME, NAME]}``.

    >>> read_goal({"pareto": ["step_time_s", "mfu"]}).text
    'pareto: minimise step_time_s, maximise mfu'
    """
    goal_keys = (*(way.value for way in Direction), "pareto")
    entries = dict(cast("Mapping[str, object]", value)) if isinstance(value, Mapping) else {}
    if len(entries) != 1:
        raise ConfigError(
            "$.goal is not one goal",
            location=location,
            hint="write it as in maximise: tokens_per_s",
        )
    ((way, figures),) = entries.items()
    if way not in goal_keys:
        raise ConfigError(
            f"unknown key {way!r} in $.goal",
            location=location,
            hint=suggestion(str(way), goal_keys),
        )
    if way == "pareto":
        names = cast("list[object]", figures) if isinstance(figures, list) else []
        if len(names) < 2 or len(set(map(str, names))) < len(names):
            raise ConfigError(
                "$.goal.pareto is no list of figures", location=location, hint="give two or more"
            )
        metric_names = [_metric(name, location) for name in names]
        return Goal(metrics=tuple((name, GOALS[name]) for name in metric_names))
    return Goal(metrics=((_metric(figures, location), Direction(way)),))


def _metric(name: object, location: str) -> str:
    if not isinstance(name, str) or name not in GOALS:
        raise ConfigError(
            f"{name!r} is no figure that can be a goal",
            location=location,
            hint=suggestion(str(name), GOALS),
        )
    return name


def ordered(rows: Sequence[_T], goal: Goal, figures: Callable[[_T], Figures]) -> list[_T]:
    """Sort rows by a goal, the best first.

    Equal rows keep their order. With several figures the order is that of `fronts`; within a front
    the first figure decides.
    """
    keys = [goal.keys(figures(row)) for row in rows]
    ranks = [0] * len(rows) if goal.is_single else fronts(keys)
    order = sorted(range(len(rows)), key=lambda index: (ranks[index], keys[index]))
    return [rows[index] for index in order]


def fronts(keys: Sequence[tuple[float, ...]]) -> list[int]:
    """Return each point's number of better fronts.

    Source: K. Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, IEEE
    Transactions on Evolutionary Computation 6 (2), 2002, section III A.

    >>> fronts([(1, 3), (2, 2), (3, 3), (2, 2)])
    [0, 0, 1, 0]
    """
    unranked, ranks, rank = set(range(len(keys))), [0] * len(keys), 0
    while unranked:
        front = {
            index
            for index in unranked
            if not any(_is_better(keys[rival], keys[index]) for rival in unranked)
        }
        for index in front:
            ranks[index] = rank
        unranked -= front
        rank += 1
    return ranks


def _is_better(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


_COLUMNS = ("part", "usd_per_device_hour", "source")


@frozen
class Price:
    """The sourced price of a part's device for an hour."""

    part: Text
    usd_per_device_hour: Positive
    source: Text

    def to_dict(self) -> dict[str, object]:
        """Return the price as a file writes it."""
        return {name: getattr(self, name) for name in _COLUMNS}


def read_prices(
    value: object, *, location: str = "", home: Path | None = None
) -> tuple[Price, ...]:
    """Read prices from a list or a named file.

    Raises `ConfigError` for invalid prices.

    >>> read_prices([{"part": "H100_80GB", "usd_per_device_hour": 2.0, "source": "our contract"}])
    (Price(part='H100_80GB', usd_per_device_hour=2.0, source='our contract'),)
    """
    if isinstance(value, str):
        path = (home or Path()) / value
        location = str(path)
        value = _read_csv(path) if path.suffix == ".csv" else read_yaml(path)
    prices = decode(value, list[Price], location=location, json_path="$.prices")
    try:
        parts = [node_name(price.part) for price in prices]
    except HardwareError as error:
        # A preset's name does not know the file that gives it.
        error.location = error.location or location
        raise
    twice = next((part for part in parts if parts.count(part) > 1), None)
    if twice is not None:
        raise ConfigError(f"there are two prices of {twice}", location=location, hint="keep one")
    return tuple(
        Price(part=part, usd_per_device_hour=priced.usd_per_device_hour, source=priced.source)
        for part, priced in zip(parts, prices, strict=True)
    )


def _read_csv(path: Path) -> list[dict[str, object]]:
    try:
        rows = list(csv.DictReader(StringIO(read_text(path))))
    except csv.Error as error:
        raise ConfigError(f"is no CSV: {error}", location=str(path)) from None
    prices: list[dict[str, object]] = []
    for number, row in enumerate(rows, start=2):
        price = row.get("usd_per_device_hour") or ""
        try:
            value = float(price)
        except ValueError:
            raise ConfigError(
                f"usd_per_device_hour is {price!r}",
                location=f"{path}:{number}",
                hint="give dollars",
            ) from None
        columns = {name: row[name] for name in row if name is not None}
        prices.append({**columns, "usd_per_device_hour": value})
    return prices


def price_of(part: str | None, prices: Iterable[Price]) -> float | None:
    """Return the price of a device-hour, if any."""
    return next((price.usd_per_device_hour for price in prices if price.part == part), None)
