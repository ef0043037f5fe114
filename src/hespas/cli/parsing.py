"""Read the small languages of single flags."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isclose

from hespas.cost.rules.custom_call import CustomCallCost, OperandTraffic, StatedWork
from hespas.cost.work import Work, flop_counts
from hespas.errors import ConfigError
from hespas.units import parse_quantity


def parse_per_line(texts: Iterable[str]) -> dict[str, int]:
    """Read ``N`` or ``LINE=N``; the key is the line, or "" for every loop.

    >>> parse_per_line(["32", "17=4"])
    {'': 32, '17': 4}
    """
    counts: dict[str, int] = {}
    for text in texts:
        line, _, number = text.rpartition("=")
        if not number.isdigit() or (line and not line.isdigit()):
            raise ConfigError(f"--trip-count {text!r}", mend="give N or LINE=N")
        counts[line] = int(number)
    return counts


def parse_weights(texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Read ``W,W`` or ``LINE=W,W``; weights add to 1.

    >>> parse_weights(["0.9,0.1"])
    {'': (0.9, 0.1)}
    """
    weights: dict[str, tuple[float, ...]] = {}
    for text in texts:
        line, _, listed = text.rpartition("=")
        try:
            numbers = tuple(map(float, listed.split(",")))
        except ValueError:
            numbers = ()
        if not isclose(sum(numbers), 1.0) or min(numbers) < 0 or (line and not line.isdigit()):
            raise ConfigError(
                f"--branch-weights {text!r}", mend="give W,W or LINE=W,W, adding to 1"
            )
        weights[line] = numbers
    return weights


def parse_rates(text: str | None) -> dict[str, float]:
    """Read ``bf16=312e12,f16=312TFLOP/s``, or a JSON object of numbers.

    >>> parse_rates("bf16=312e12,f16=1 TFLOP/s")
    {'bf16': 312000000000000.0, 'f16': 1000000000000.0}
    """
    if text is None:
        return {}
    if text.lstrip().startswith("{"):
        try:
            return {str(key): float(value) for key, value in json.loads(text).items()}
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"--per-datatype-flops {text!r} is not a JSON object of numbers"
            ) from error
    rates: dict[str, float] = {}
    for part in text.split(","):
        name, found, rate = part.partition("=")
        if not found:
            raise ConfigError(f"--per-datatype-flops {part!r}", mend="give TYPE=RATE,TYPE=RATE")
        rates[name.strip()] = parse_quantity(rate, "FLOP/s")
    return rates


def parse_custom_calls(texts: Iterable[str]) -> dict[str, CustomCallCost]:
    """Read ``TARGET=traffic`` or ``TARGET=flops:N,type:T,bytes:N``.

    >>> parse_custom_calls(["mine=traffic"])
    {'mine': OperandTraffic()}
    """
    costs: dict[str, CustomCallCost] = {}
    for text in texts:
        target, _, cost = text.rpartition("=")
        if not target:
            raise ConfigError(
                f"--custom-call {text!r}",
                mend="give TARGET=traffic or TARGET=flops:N,type:T,bytes:N",
            )
        costs[target] = OperandTraffic() if cost == "traffic" else _stated(text, cost)
    return costs


def _stated(text: str, cost: str) -> StatedWork:
    parts = [part.partition(":") for part in cost.split(",")]
    fields = {name: value for name, _, value in parts}
    unknown = set(fields) - {"flops", "type", "bytes"}
    try:
        flops, moved = float(fields.get("flops", "0")), float(fields.get("bytes", "0"))
    except ValueError:
        unknown = {"a number"}
        flops = moved = 0.0
    if unknown or min(flops, moved) < 0:
        raise ConfigError(f"--custom-call {text!r}", mend="give traffic, or flops:N,type:T,bytes:N")
    work = Work(flops=flop_counts(fields.get("type", "f32"), round(flops)), bytes_read=round(moved))
    return StatedWork(work=work)
