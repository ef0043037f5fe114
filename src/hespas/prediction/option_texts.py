"""Values of options as people write them: counts of loops, weights of branches, rates, work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import isclose, isfinite
from pathlib import Path
from typing import Any, cast

from hespas.base.figures import MOST_DIGITS
from hespas.base.suggest import suggestion
from hespas.base.units import parse_quantity, parse_rate
from hespas.errors import ConfigError, option
from hespas.hardware.cluster import Cluster, read_cluster
from hespas.hardware.system import LinkBandwidth
from hespas.program.types import ELEMENT_TYPES, PRODUCT_TYPES
from hespas.program.work import Work, flop_counts
from hespas.work.custom_call import CustomCallCost, OperandTraffic, StatedWork

_WHOLE = re.compile(r"[0-9]+")
_INSTRUCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_CUSTOM_CALL_FORM = "give TARGET=traffic, or TARGET=flops:N,type:T,bytes:N"


def parse_trip_counts(texts: Iterable[str]) -> dict[str, int]:
    """Read ``N`` or ``LINE=N``; the key is the line, in HLO the name, or "" for every loop.

    >>> parse_trip_counts(["32", "17=4", "while.3=5"])
    {'': 32, '17': 4, 'while.3': 5}
    """
    counts: dict[str, int] = {}
    for text in texts:
        line, _, number = text.rpartition("=")
        if not _WHOLE.fullmatch(number) or not _is_loop_or_branch(line):
            raise ConfigError(f"{option('trip_count')} is {text!r}", hint="give N or LINE=N")
        _refuse_twice("trip_count", line, counts, every="every loop")
        counts[line] = int(number)
    return counts


def parse_branch_weights(texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Read ``W,W`` or ``LINE=W,W``; weights add to 1.

    >>> parse_branch_weights(["0.9,0.1"])
    {'': (0.9, 0.1)}
    """
    weights: dict[str, tuple[float, ...]] = {}
    for text in texts:
        line, _, listed = text.rpartition("=")
        numbers = tuple(map(_number, listed.split(",")))
        adds_up = all(number >= 0 for number in numbers) and isclose(sum(numbers), 1.0)
        if not adds_up or not _is_loop_or_branch(line):
            raise ConfigError(
                f"{option('branch_weights')} is {text!r}",
                hint="give W,W or LINE=W,W, adding to 1",
            )
        _refuse_twice("branch_weights", line, weights, every="every branch")
        weights[line] = numbers
    return weights


def _is_loop_or_branch(text: str) -> bool:
    return text == "" or any(form.fullmatch(text) for form in (_WHOLE, _INSTRUCTION))


def _refuse_twice(name: str, key: str, seen: Mapping[str, object], *, every: str = "") -> None:
    if key in seen:
        raise ConfigError(f"{option(name)} is given twice for {key or every}", hint="keep one")


def _number(text: str) -> float:
    """Return a finite number, or -1 for anything else."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if isfinite(value) else -1.0


_LARGEST_FACTOR = 1e6
_LINK_FORM = "write DIM=xFACTOR or DIM=RATE, as in 1=x0.5 or 1=25GB/s; the nearest dimension is 0"


def parse_link_bandwidths(texts: Iterable[str]) -> tuple[LinkBandwidth, ...]:
    """Read ``DIM=xFACTOR`` and ``DIM=RATE``; `ConfigError` for anything else.

    >>> [str(each) for each in parse_link_bandwidths(["0=x2", "1=25GB/s"])]
    ['0=x2', '1=2.5e+10B/s']
    """
    name = "link_bandwidth"
    least, most = 1 / _LARGEST_FACTOR, _LARGEST_FACTOR
    changes: dict[str, LinkBandwidth] = {}
    for text in texts:
        at, equals, rate = (part.strip() for part in text.partition("="))
        if not equals or not at.isdecimal() or len(at) > MOST_DIGITS:
            raise ConfigError(f"{option(name)} is {text[:60]!r}", hint=_LINK_FORM)
        dimension = int(at)
        _refuse_twice(name, str(dimension), changes)
        if rate[:1] not in {"x", "X"}:
            rate_s = parse_rate(rate, "B/s", location=f"{option(name)} {dimension}")
            changed = LinkBandwidth(dimension=dimension, bytes_per_s=rate_s)
        else:
            factor = _number(rate[1:])
            if not least <= factor <= most:
                raise ConfigError(
                    f"{option(name)} is {text[:60]!r}",
                    hint=f"give a factor from {least:g} to {most:g}; dead links are for a file, "
                    f"{option('imperfect')}",
                )
            changed = LinkBandwidth(dimension=dimension, factor=factor)
        changes[str(dimension)] = changed
    return tuple(changes.values())


def parse_rates(text: str) -> dict[str, float]:
    """Read ``bf16=312e12,f16=312TFLOP/s``, or a JSON object of numbers.

    >>> parse_rates("bf16=312e12,f16=1 TFLOP/s")
    {'bf16': 312000000000000.0, 'f16': 1000000000000.0}
    """
    name = "per_datatype_flops"
    rates: dict[str, float] = {}
    for kind, rate in _json_pairs(text) if text.lstrip().startswith("{") else _listed_pairs(text):
        if kind not in PRODUCT_TYPES:
            raise ConfigError(
                f"{option(name)}: unknown element type {kind!r}",
                hint=suggestion(kind, PRODUCT_TYPES),
            )
        _refuse_twice(name, kind, rates)
        rates[kind] = parse_rate(rate, "FLOP/s", location=f"{option(name)} {kind}")
    return rates


def _listed_pairs(text: str) -> list[tuple[str, str]]:
    pairs = [part.partition("=") for part in text.split(",")]
    for kind, equals, _ in pairs:
        if not equals:
            raise ConfigError(
                f"{option('per_datatype_flops')}: {kind!r} has no rate",
                hint="give TYPE=RATE,TYPE=RATE",
            )
    return [(kind.strip(), rate) for kind, _, rate in pairs]


def _json_pairs(text: str) -> list[tuple[str, str]]:
    try:
        pairs = cast("list[tuple[str, Any]]", json.loads(text, object_pairs_hook=list))
    except ValueError as error:
        raise ConfigError(f"{option('per_datatype_flops')}: malformed JSON: {error}") from error
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in pairs]


_FEWEST_PARAMETERS = 1000
"""A smaller number was meant in millions or billions."""


def parse_parameters(text: str) -> float:
    """Read how many parameters a model has; B is a billion, as in names of models.

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


def parse_custom_calls(texts: Iterable[str]) -> dict[str, CustomCallCost]:
    """Read ``TARGET=traffic`` or ``TARGET=flops:N,type:T,bytes:N``.

    >>> parse_custom_calls(["mine=traffic"])
    {'mine': OperandTraffic()}
    """
    costs: dict[str, CustomCallCost] = {}
    for text in texts:
        target, _, cost = text.rpartition("=")
        if not target:
            raise ConfigError(f"{option('custom_call')} is {text!r}", hint=_CUSTOM_CALL_FORM)
        _refuse_twice("custom_call", target, costs)
        costs[target] = OperandTraffic() if cost == "traffic" else _stated_work(text, cost)
    return costs


def _stated_work(text: str, cost: str) -> StatedWork:
    parts = [part.partition(":") for part in cost.split(",")]
    fields = {name.strip(): value.strip() for name, _, value in parts}
    amounts = [_number(fields[name]) for name in ("flops", "bytes") if name in fields]
    allowed = {"flops", "bytes"} | ({"type"} if "flops" in fields else set[str]())
    if not amounts or min(amounts) < 0 or set(fields) - allowed or len(fields) < len(parts):
        raise ConfigError(f"{option('custom_call')} is {text!r}", hint=_CUSTOM_CALL_FORM)
    kind = fields.get("type", "f32")
    if kind not in ELEMENT_TYPES:
        raise ConfigError(
            f"{option('custom_call')} {text!r}: unknown element type {kind!r}",
            hint=suggestion(kind, ELEMENT_TYPES),
        )
    flops, moved = (round(_number(fields.get(name, "0"))) for name in ("flops", "bytes"))
    return StatedWork(work=Work(flops=flop_counts(kind, flops), bytes_read=moved))


def parse_cluster(text: str) -> Cluster:
    """Return what is not perfect about a cluster, as its file says."""
    return read_cluster(Path(text))
