"""Assumptions of a result, joined where alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from hespas.prediction.figures.schema import About, AssumptionGroup
from hespas.price.estimate import Estimate
from hespas.program.assumption import Part, Subject

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction
    from hespas.prediction.result import Prediction


_EXAMPLES = 3
# "kernel loop_add_fusion: 3 accesses go where data says": whose it is, and what.
_OF_ONE = re.compile(r"(kernel) (\S+): (?:(\d+) )?(.*)", re.DOTALL)
# "products of bf16 outside the measured sizes (in m, k) take as long as ...".
_SIZES = re.compile(r" \(in ([a-z_ ,]+)\)")


def grouped_assumptions(
    assumptions: Iterable[str], decided_s: Mapping[str, float] | None = None, whole_s: float = 0.0
) -> list[AssumptionGroup]:
    """Join assumptions that differ only in their kernel or sizes.

    ``decided_s`` is the time that each decides, of the computation's ``whole_s``. Assumptions about
    everything have none, and are first; the others are sorted by their time.

    >>> [group] = grouped_assumptions(
    ...     ["kernel add: 3 loads go where data says", "kernel gather: 1 loads go where data says"],
    ...     {"kernel add: 3 loads go where data says": 0.2}, 1.0)
    >>> group.text, group.share
    ('2 kernels (add, gather): loads go where data says', 0.2)
    """
    groups = [_group(texts, decided_s or {}, whole_s) for texts in _alike(assumptions)]
    return sorted(
        groups, key=lambda group: 2.0 if group.share is None else group.share, reverse=True
    )


def assumptions_of_step(
    prediction: Prediction | PipelinePrediction, total: Estimate
) -> list[AssumptionGroup]:
    """Return a step's assumptions, the most decisive first.

    ``total`` is what a device computes, with the times of its notes. Unknown shares stand last.
    """
    step_s = prediction.step_time_s
    parts_s = {
        Part.STEP: step_s,
        Part.COMPUTATION: prediction.compute_s,
        Part.EXPOSED_COMMUNICATION: prediction.exposed_communication_s,
        Part.EXPOSED_HOST_TRANSFERS: prediction.exposed_host_transfer_s,
        Part.LAUNCH_WAITS: prediction.launch_wait_s,
        Part.SLOWED_COMPUTATION: prediction.slowed_s,
        Part.NOTED_OPERATIONS: 0.0,
    }
    subjects = {assumption.text: assumption.subject for assumption in prediction.assumed}
    groups: list[AssumptionGroup] = []
    for texts in _alike(subjects):
        subject = subjects[texts[0]]
        decided = [total.noted_s[text] for text in texts if text in total.noted_s]
        if not decided and subject.part is not None:
            decided = [parts_s[subject.part]]
        share = min(1.0, sum(decided) / step_s) if decided and step_s > 0 else None
        group = _group(texts, total.noted_s, total.time_s)
        about = _about(subject)
        groups.append(msgspec.structs.replace(group, step_share=share, about=about))
    return sorted(
        groups,
        key=lambda group: -1.0 if group.step_share is None else group.step_share,
        reverse=True,
    )


def _about(subject: Subject) -> list[About]:
    abouts: list[About] = ["time"] if subject.part is not None else []
    if subject.fits:
        abouts.append("memory")
    if subject.hidden:
        abouts.append("overlap")
    return abouts or ["time"]


def _alike(assumptions: Iterable[str]) -> Iterable[list[str]]:
    alike: dict[str, list[str]] = {}
    for text in dict.fromkeys(assumptions):
        match = _OF_ONE.fullmatch(text)
        key = f"{match[1]}: {match[4]}" if match else _SIZES.sub("", text)
        alike.setdefault(key, []).append(text)
    return alike.values()


def _group(texts: list[str], decided_s: Mapping[str, float], whole_s: float) -> AssumptionGroup:
    times_s = [decided_s[text] for text in texts if text in decided_s]
    share = min(1.0, sum(times_s) / whole_s) if times_s and whole_s > 0 else None
    return AssumptionGroup(
        text=_joined(texts), count=len(texts), share=share, examples=_examples(texts)
    )


def _joined(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    match = _OF_ONE.fullmatch(texts[0])
    names = ", ".join(_examples(texts))
    if match is None:
        return _SIZES.sub(f" (in {names})", texts[0])
    more = ", ..." if len(texts) > _EXAMPLES else ""
    return f"{len(texts)} {match[1]}s ({names}{more}): {match[4]}"


def _examples(texts: list[str]) -> list[str]:
    matches = [_OF_ONE.fullmatch(text) for text in texts[:_EXAMPLES]]
    names = [match[2] for match in matches if match]
    sizes = {size for text in texts for match in _SIZES.findall(text) for size in match.split(", ")}
    return names or sorted(sizes)
