"""Token shares of the experts of a mixture.

The router chooses them as it runs; no program states them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose, isfinite
from pathlib import Path
from typing import ClassVar, cast

import msgspec

from hespas.base.decode import read_json
from hespas.base.fields import Group, Use, declare
from hespas.base.frozen import frozen
from hespas.errors import ConfigError
from hespas.program.attrs import MOSAIC, CustomCallAttrs, DotAttrs
from hespas.program.program import Op, shape_of
from hespas.program.types import NumberKind, TensorType


@frozen
class ExpertLoad:
    """The shares of the tokens of each expert, by layer.

    The shares of a layer add to 1. Without layers all experts get equal shares. ``source`` names
    the file in messages.

    >>> skewed = ExpertLoad(layers=((0.5, 0.25, 0.25, 0.0),), source="load.json")
    >>> skewed.busiest(experts=4, devices=2)
    (0.5, 0.25)
    >>> UNIFORM.busiest(experts=4, devices=2)
    (0.25, 0.25)
    """

    layers: tuple[tuple[float, ...], ...] = ()
    source: str = ""

    @property
    def experts(self) -> int | None:
        """The number of listed experts; None for uniform load."""
        return len(self.layers[0]) if self.layers else None

    def busiest(self, *, experts: int, devices: int) -> tuple[float, ...]:
        """Return the expert shares of the busiest device, largest first.

        Each device has the same number of experts, in order. With several layers the result is the
        mean over layers, each with its own busiest device: a step waits for it in every layer.
        """
        busiest_shares = [
            sorted(max(device_shares, key=sum), reverse=True)
            for device_shares in self._by_device(experts, devices)
        ]
        return tuple(
            [sum(column) / len(busiest_shares) for column in zip(*busiest_shares, strict=True)]
        )

    def beyond(self, share: float, *, experts: int, devices: int) -> float:
        """Return the tokens above a device's ``share``, of all."""
        layers = self._by_device(experts, devices)
        total = sum(
            max(0.0, sum(shares) - share) for device_shares in layers for shares in device_shares
        )
        return total / len(layers)

    def _by_device(self, experts: int, devices: int) -> list[list[tuple[float, ...]]]:
        """Return the expert shares of each device, by layer."""
        count = experts // devices
        layers = self.layers or ((1 / experts,) * experts,)
        return [
            [shares[first : first + count] for first in range(0, len(shares), count)]
            for shares in layers
        ]


UNIFORM = ExpertLoad()
"""Every expert gets the same number of tokens."""


_UNIFORM = "uniform"
_FORM = "give a number for each expert, or a list of such lists, one for each layer"
_COLUMNS = "give the columns expert, tokens (or share), and layer where layers differ"


def parse_expert_load(text: str) -> ExpertLoad:
    """Read ``uniform``, or the file that lists each expert's load.

    A ``.csv`` file has the columns ``expert`` and ``tokens`` or ``share``, and ``layer`` if layers
    differ. Any other file is JSON: a list with a number for each expert, a list of such lists, one
    for each layer, or an object with such a list as ``tokens`` or as ``shares``. Experts count from
    0. Raises `ConfigError` for a file of another form, a negative number, layers of different
    lengths or of different numbers of tokens, and shares that don't add to 1.

    >>> parse_expert_load("uniform").layers
    ()
    """
    if text == _UNIFORM:
        return UNIFORM
    path = Path(text)
    is_csv = path.suffix.lower() == ".csv"
    layers, are_shares = _csv_layers(path) if is_csv else _json_layers(path)
    _check_layers(layers, str(path), are_shares=are_shares)
    return ExpertLoad(
        layers=tuple([tuple([load / sum(layer) for load in layer]) for layer in layers]),
        source=str(path),
    )


EXPERTS = Use(": there is no exchange and no product of rows of experts")


@frozen
class ExpertOptions:
    """Options for a mixture of experts."""

    GROUP: ClassVar[Group] = Group.WORKLOAD

    expert_load: ExpertLoad | None = declare(
        help="How many tokens each expert gets: uniform, or a file (JSON or CSV).",
        parse=parse_expert_load,
        metavar="uniform|FILE",
        default_text=_UNIFORM,
        applies_to=(EXPERTS,),
    )


_Layers = list[list[float]]


def _json_layers(path: Path) -> tuple[_Layers, bool]:
    value, are_shares = read_json(path), False
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        if len(fields) != 1 or fields.keys() - {"tokens", "shares"}:
            keys = ", ".join(map(repr, fields)) or "no keys"
            raise ConfigError(
                f"the object has {keys}", location=str(path), hint='give "tokens" or "shares"'
            )
        ((key, value),) = fields.items()
        are_shares = key == "shares"
    if not isinstance(value, list) or not value:
        raise ConfigError("it holds no list of experts", location=str(path), hint=_FORM)
    entries = cast("list[object]", value)
    if not isinstance(entries[0], list):
        return [_parse_numbers(entries, str(path))], are_shares
    return [
        _parse_numbers(layer, f"{path}: layer {number}") for number, layer in enumerate(entries)
    ], are_shares


def _parse_numbers(layer: object, location: str) -> list[float]:
    if not isinstance(layer, list) or not layer:
        raise ConfigError("it is no list of numbers", location=location, hint=_FORM)
    numbers: list[float] = []
    for expert, load in enumerate(cast("list[object]", layer)):
        if isinstance(load, bool) or not isinstance(load, int | float):
            raise ConfigError(f"{load!r} is no number", location=f"{location}: expert {expert}")
        numbers.append(float(load))
    return numbers


def _csv_layers(path: Path) -> tuple[_Layers, bool]:
    from hespas.base.table import read_table  # noqa: PLC0415 - few loads come in a table

    columns = ("expert", "tokens", "share", "layer")
    table = read_table(path, needed=("expert",), columns=columns, error=ConfigError)
    amounts = {"tokens", "share"}.intersection(table.names)
    if len(amounts) != 1:
        listed = ", ".join(table.names)
        raise ConfigError(f"its columns are {listed}", location=table.location, hint=_COLUMNS)
    (amount,) = amounts
    layers: dict[int, dict[int, float]] = {}
    for line in table.lines:
        layer = line.whole("layer", least=0) if line.text("layer") else 0
        expert = line.whole("expert", least=0)
        if expert in layers.setdefault(layer, {}):
            raise ConfigError(f"expert {expert} is listed twice", location=line.location)
        layers[layer][expert] = line.amount(amount, least=0.0)
    return [
        _layer_in_order(layers, number, str(path)) for number in range(len(layers))
    ], amount == "share"


def _layer_in_order(
    layers: Mapping[int, Mapping[int, float]], number: int, location: str
) -> list[float]:
    layer = layers.get(number)
    if layer is None:
        raise ConfigError(
            f"layer {number} is missing", location=location, hint="count layers from 0"
        )
    missing = next((expert for expert in range(len(layer)) if expert not in layer), None)
    if missing is not None:
        raise ConfigError(
            f"expert {missing} of layer {number} is missing",
            location=location,
            hint="count experts from 0",
        )
    return [layer[expert] for expert in range(len(layer))]


def _check_layers(layers: Sequence[Sequence[float]], location: str, *, are_shares: bool) -> None:
    if not layers:
        raise ConfigError("it lists no expert", location=location, hint=_FORM)
    first = layers[0]
    for number, layer in enumerate(layers):
        where = f"{location}: layer {number}" if len(layers) > 1 else location
        wrong = next((load for load in layer if load < 0 or not isfinite(load)), None)
        if wrong is not None:
            raise ConfigError(
                f"expert {layer.index(wrong)} has {wrong:g}", location=where, hint="give 0 or more"
            )
        if len(layer) != len(first):
            raise ConfigError(
                f"it has {len(layer)} experts, and layer 0 has {len(first)}", location=where
            )
        total = sum(layer)
        if are_shares and not isclose(total, 1.0, abs_tol=1e-6):
            raise ConfigError(f"the shares add to {total:g}", location=where, hint="add to 1")
        if total <= 0:
            raise ConfigError("no expert gets a token", location=where)
        if not isclose(total, sum(first), rel_tol=1e-6):
            raise ConfigError(
                f"its experts get {total:g} together, and those of layer 0 {sum(first):g}",
                location=where,
                hint="every layer routes as many tokens: give shares",
            )


class GroupedProduct(msgspec.Struct, frozen=True, kw_only=True):
    """A product of up to ``rows`` rows in ``groups``, whose rows are data."""

    rows: int
    groups: int


def grouped_product(op: Op) -> GroupedProduct | None:
    """Return a grouped product's rows and groups, or None."""
    match op.attrs:
        case DotAttrs(ragged=int(ragged)):
            # Products in fewer bits have scales as further operands.
            rows, groups = shape_of(op.operands[0]), shape_of(op.operands[2])
            return GroupedProduct(rows=rows[ragged], groups=groups[-1])
        case CustomCallAttrs(target=target) if target == MOSAIC:
            return _kernel_product(op)
        case _:
            return None


def _kernel_product(op: Op) -> GroupedProduct | None:
    """Recognize a grouped product by a TPU kernel's arrays.

    Such a kernel takes a table of where each group begins and the last one ends: one number more
    than there are groups. One of its three arrays has a matrix for each group; the two others have
    a row for each row.
    """
    tables = {
        kind.shape[0]
        for operand in op.operands
        if isinstance(kind := operand.type, TensorType)
        and kind.rank == 1
        and kind.element.kind is NumberKind.INTEGER
    }
    arrays = [shape for shape in map(shape_of, (*op.operands, *op.results)) if len(shape) > 1]
    stacked = [shape for shape in arrays if len(shape) == 3 and shape[0] + 1 in tables]
    row_arrays = [shape for shape in arrays if len(shape) == 2]
    if len(arrays) != 3 or len(stacked) != 1 or len(row_arrays) != 2:
        return None
    groups, *sizes = stacked[0]
    first, second = row_arrays
    rows = [size for size in first if size in second and size not in sizes]
    # If the row count equals a size of the matrix, rows are the first dimension.
    return GroupedProduct(rows=rows[0] if len(rows) == 1 else first[0], groups=groups)


def steps_of_tiles(group_rows: Sequence[int], tile: int) -> int:
    """Count the tiles of rows that consecutive groups touch.

    A tile in which one group ends and the next begins counts for both.

    >>> steps_of_tiles((100, 28, 0, 128), 128)
    3
    """
    steps, start = 0, 0
    for rows in group_rows:
        if rows:
            steps += -(-(start + rows) // tile) - start // tile
        start += rows
    return steps
