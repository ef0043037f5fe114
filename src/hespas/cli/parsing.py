"""Read the small languages of single flags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from math import isclose, isfinite
from typing import Any, cast

from hespas.config.suggest import suggestion
from hespas.cost.rules.custom_call import CustomCallCost, OperandTraffic, StatedWork
from hespas.cost.work import Work, flop_counts
from hespas.errors import ConfigError
from hespas.program.types import ELEMENT_TYPES
from hespas.units import parse_quantity

_WHOLE = re.compile(r"[0-9]+")
_INSTRUCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_CUSTOM_CALL_FORM = "give TARGET=traffic, or TARGET=flops:N,type:T,bytes:N"


def parse_per_line(texts: Iterable[str]) -> dict[str, int]:
    """Read ``N`` or ``LINE=N``; the key is the line, in HLO the name, or "" for every loop.

    >>> parse_per_line(["32", "17=4", "while.3=5"])
    {'': 32, '17': 4, 'while.3': 5}
    """
    counts: dict[str, int] = {}
    for text in texts:
        line, _, number = text.rpartition("=")
        if not _WHOLE.fullmatch(number) or not _is_place(line):
            raise ConfigError(f"--trip-count is {text!r}", hint="give N or LINE=N")
        _refuse_twice(line in counts, "--trip-count", line or "every loop")
        counts[line] = int(number)
    return counts


def _is_place(text: str) -> bool:
    return any(form.fullmatch(text) for form in (_WHOLE, _INSTRUCTION)) or text == ""


def _refuse_twice(found: bool, flag: str, what: str) -> None:
    if found:
        raise ConfigError(f"{flag} is given twice for {what}", hint="keep one")


def parse_weights(texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Read ``W,W`` or ``LINE=W,W``; weights add to 1.

    >>> parse_weights(["0.9,0.1"])
    {'': (0.9, 0.1)}
    """
    weights: dict[str, tuple[float, ...]] = {}
    for text in texts:
        line, _, listed = text.rpartition("=")
        numbers = tuple(map(_number, listed.split(",")))
        adds_up = all(number >= 0 for number in numbers) and isclose(sum(numbers), 1.0)
        if not adds_up or not _is_place(line):
            raise ConfigError(
                f"--branch-weights is {text!r}", hint="give W,W or LINE=W,W, adding to 1"
            )
        _refuse_twice(line in weights, "--branch-weights", line or "every branch")
        weights[line] = numbers
    return weights


def _number(text: str) -> float:
    """Return a finite number, or -1 for what is none."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if isfinite(value) else -1.0


_LEAST_BARE_RATE = 1e8
_USUAL = {"FLOP/s": "TFLOP/s", "B/s": "GB/s"}


def parse_rate(text: str, unit: str, *, location: str) -> float:
    """Read a rate of a device, in FLOP/s or B/s.

    A bare number that no accelerator is so slow as to reach was meant in another unit:
    `ConfigError` for one, unless it has its unit.

    >>> parse_rate("3350GB/s", "B/s", location="--memory-bandwidth")
    3350000000000.0
    >>> parse_rate("90MFLOPS", "FLOP/s", location="--peak-flops")
    90000000.0
    >>> parse_rate("3350", "B/s", location="--memory-bandwidth")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: --memory-bandwidth: 3350 without a unit is 3350 B/s; \
give 3350GB/s, or 3350B/s if it is meant
    """
    rate = parse_quantity(text, unit, location=location)
    bare = text.strip()
    if 0 < rate < _LEAST_BARE_RATE and not bare[-1].isalpha():
        usual = _USUAL[unit]
        raise ConfigError(
            f"{bare} without a unit is {bare} {unit}",
            location=location,
            hint=f"give {bare}{usual}, or {bare}{unit} if it is meant",
        )
    return rate


def parse_rates(text: str | None) -> dict[str, float]:
    """Read ``bf16=312e12,f16=312TFLOP/s``, or a JSON object of numbers.

    >>> parse_rates("bf16=312e12,f16=1 TFLOP/s")
    {'bf16': 312000000000000.0, 'f16': 1000000000000.0}
    """
    if text is None:
        return {}
    given = _json_pairs(text) if text.lstrip().startswith("{") else _listed_pairs(text)
    rates: dict[str, float] = {}
    for name, rate in given:
        if name not in ELEMENT_TYPES:
            raise ConfigError(
                f"--per-datatype-flops: unknown element type {name!r}",
                hint=suggestion(name, ELEMENT_TYPES),
            )
        _refuse_twice(name in rates, "--per-datatype-flops", name)
        rates[name] = parse_rate(rate, "FLOP/s", location=f"--per-datatype-flops {name}")
    return rates


def _listed_pairs(text: str) -> list[tuple[str, str]]:
    pairs = [part.partition("=") for part in text.split(",")]
    for name, found, _ in pairs:
        if not found:
            raise ConfigError(
                f"--per-datatype-flops: {name!r} has no rate", hint="give TYPE=RATE,TYPE=RATE"
            )
    return [(name.strip(), rate) for name, _, rate in pairs]


def _json_pairs(text: str) -> list[tuple[str, str]]:
    try:
        pairs = cast("list[tuple[str, Any]]", json.loads(text, object_pairs_hook=list))
    except ValueError as error:
        raise ConfigError(f"--per-datatype-flops: malformed JSON: {error}") from error
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in pairs]


def parse_custom_calls(texts: Iterable[str]) -> dict[str, CustomCallCost]:
    """Read ``TARGET=traffic`` or ``TARGET=flops:N,type:T,bytes:N``.

    >>> parse_custom_calls(["mine=traffic"])
    {'mine': OperandTraffic()}
    """
    costs: dict[str, CustomCallCost] = {}
    for text in texts:
        target, _, cost = text.rpartition("=")
        if not target:
            raise ConfigError(f"--custom-call is {text!r}", hint=_CUSTOM_CALL_FORM)
        _refuse_twice(target in costs, "--custom-call", target)
        costs[target] = OperandTraffic() if cost == "traffic" else _stated(text, cost)
    return costs


def _stated(text: str, cost: str) -> StatedWork:
    parts = [part.partition(":") for part in cost.split(",")]
    fields = {name.strip(): value.strip() for name, _, value in parts}
    amounts = [_number(fields[name]) for name in ("flops", "bytes") if name in fields]
    known = {"flops", "bytes"} | ({"type"} if "flops" in fields else set[str]())
    if not amounts or min(amounts) < 0 or set(fields) - known or len(fields) < len(parts):
        raise ConfigError(f"--custom-call is {text!r}", hint=_CUSTOM_CALL_FORM)
    kind = fields.get("type", "f32")
    if kind not in ELEMENT_TYPES:
        raise ConfigError(
            f"--custom-call {text!r}: unknown element type {kind!r}",
            hint=suggestion(kind, ELEMENT_TYPES),
        )
    flops, moved = (round(_number(fields.get(name, "0"))) for name in ("flops", "bytes"))
    return StatedWork(work=Work(flops=flop_counts(kind, flops), bytes_read=moved))
