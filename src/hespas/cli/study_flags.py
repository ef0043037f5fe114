"""The flags of studies without a file: each takes one value, or a list with commas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hespas.base.fields import Group, Option
from hespas.cli import flags
from hespas.compile.options import FULL, SLOP_OPTION
from hespas.errors import ConfigError, option
from hespas.models.catalogue import model_named, models
from hespas.models.model import Model
from hespas.models.part import PIPE
from hespas.sources.source import platform_of
from hespas.study.keys import CLUSTER, MESH, WORKLOAD, Scalar, known_keys
from hespas.study.space import system_named
from hespas.study.study import AUTO, Study, StudyFidelity, study_of

_MICRO_BATCHES = (1, 2, 4)
_ON_REQUEST = frozenset({"context"})
"""Axes that are for long sequences, and are searched where they are named."""


def _keys() -> dict[str, Option]:
    """Return the keys that have a flag here: the cluster, and how a model is run."""
    return {
        key: each
        for key, each in known_keys().items()
        if key == CLUSTER or each.group is Group.MODEL
    }


def _flag(key: str, each: Option) -> Any:
    metavar = each.metavar or ("N" if each.kinds == (int,) else key.upper())
    return flags.both(
        key,
        metavar=f"{metavar},..",
        required=key == CLUSTER,
        help=each.help.rstrip(".") + "; several with commas.",
        group=Group.MAIN if key == CLUSTER else Group.MODEL,
    )


searched = flags.combined(
    *(_flag(key, each) for key, each in _keys().items()),
    flags.both(
        MESH,
        metavar="AXIS=N|auto,..",
        group=Group.MODEL,
        help="The mesh, as in fsdp=auto,tp=8: auto is all sizes that fit.",
    ),
    flags.both(
        "fidelity",
        metavar="KIND",
        default=AUTO,
        group=Group.MAIN,
        help=f"What is predicted: {', '.join(each.value for each in StudyFidelity)}.",
    ),
)
"""Adds the flags."""


def _given(model: str, given: Mapping[str, Any]) -> dict[str, object]:
    """Return the keys of a study, as its file has them, from flags."""
    found: dict[str, object] = {WORKLOAD: model, "fidelity": given["fidelity"]}
    for key, each in _keys().items():
        text = given.get(key)
        if text is None:
            continue
        values = [_typed(key, part.strip(), each) for part in str(text).split(",")]
        found[key] = values[0] if len(values) == 1 else values
    if given.get(MESH) is not None:
        found[MESH] = _mesh(given[MESH])
    return found


def _typed(key: str, text: str, each: Option) -> Scalar:
    if bool in each.kinds:
        if text not in {"true", "false"}:
            raise ConfigError(f"{option(key)} is {text!r}", hint="give true or false")
        return text == "true"
    if each.kinds == (int,) and each.parse is None:
        if not text.isdecimal():
            raise ConfigError(f"{option(key)} is {text!r}", hint="give a number of 1 or more")
        return int(text)
    return text


def _mesh(text: str) -> dict[str, object]:
    axes: dict[str, object] = {}
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not (size == AUTO or size.isdecimal()) or name in axes:
            raise ConfigError(f"{option(MESH)} is {text!r}", hint="write it as in fsdp=auto,tp=8")
        axes[name] = AUTO if size == AUTO else int(size)
    return axes


def study_from(model: str, given: Mapping[str, Any]) -> Study:
    """Return the study of all that flags list, every candidate predicted to the end."""
    # More than a study can have: none is left out.
    return study_of({**_given(model, given), "budget": {"compile": 10**6}})


def _axes(model: Model) -> tuple[list[str], list[str]]:
    """Return the axes of a model's mesh that are searched, and those that are on request."""
    settings = model.settings
    divided = getattr(settings, "axes", {}).values()
    axes = list(dict.fromkeys(axis for named in divided for axis in named)) or settings.mesh.names
    searched = [axis for axis in axes if axis not in _ON_REQUEST]
    others = [axis for axis in axes if axis in _ON_REQUEST]
    return searched, [*others, PIPE] if model.build_part else others


def _title(searched: Sequence[str], others: Sequence[str]) -> str:
    """Return what a search says of itself.

    >>> _title(["data", "tp"], ["pipe"])
    'Meshes of data, tp; not searched: pipe (--mesh data=auto,tp=auto,pipe=auto)'
    """
    title = f"Meshes of {', '.join(searched)}"
    if not others:
        return title
    every = ",".join(f"{axis}={AUTO}" for axis in (*searched, *others))
    return f"{title}; not searched: {', '.join(others)} (--mesh {every})"


def search_from(model: str, given: Mapping[str, Any], *, compiled: int | None) -> Study:
    """Return the study that finds the best mesh of a model, of its usual axes unless one is given.

    Its title says which axes those are, and which others `--mesh` could name. On GPUs the memory
    limit of XLA's scheduler is raised where a candidate needs that and fits.
    """
    found = _given(model, given)
    if model not in models():
        raise ConfigError(
            f"{model} has no mesh to search", hint="name a model: hespas export --list"
        )
    title = ""
    if MESH not in found:
        searched, others = _axes(model_named(model))
        found[MESH] = dict.fromkeys(searched, AUTO)
        title = _title(searched, others)
    has = model_named(model).options()
    if "remat" in has:
        found.setdefault("remat", ["minimal_with_context", "full"])
    if "accumulation" in has:
        found.setdefault("micro_batch", list(_MICRO_BATCHES))
    clusters = str(given[CLUSTER]).split(",")
    if all(platform_of(system_named(each.strip()).part) == "cuda" for each in clusters):
        found[SLOP_OPTION] = FULL
    goal = "tokens_per_s_per_device" if "sequence" in has else "samples_per_s"
    return study_of(
        {
            **found,
            "title": title,
            "where": "memory.fits",
            "goal": {"maximise": goal},
            "budget": {} if compiled is None else {"compile": compiled},
        }
    )
