"""The study that finds the best mesh of a model on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from hespas.compile.options import FULL, SLOP_OPTION
from hespas.errors import ConfigError
from hespas.models.catalogue import find_model
from hespas.models.model import Model
from hespas.models.part import PIPE
from hespas.sources.source import platform_of
from hespas.study.keys import CLUSTER, MESH, WORKLOAD
from hespas.study.space import system_named
from hespas.study.study import AUTO, Study, study_of

_MICRO_BATCHES = (1, 2, 4)
_ON_REQUEST = frozenset({"context", "sequence"})
"""Axes for long sequences, which are searched only if they are named."""


def searched_axes(model: Model) -> tuple[list[str], list[str]]:
    """Return the axes of a model's mesh that are searched, and those on request."""
    settings = model.settings
    divided = getattr(settings, "axes", {}).values()
    axes = list(dict.fromkeys(axis for names in divided for axis in names)) or settings.mesh.names
    searched = [axis for axis in axes if axis not in _ON_REQUEST]
    request_axes = [axis for axis in axes if axis in _ON_REQUEST]
    return searched, [*request_axes, PIPE] if model.can_be_cut else request_axes


def _title(searched: Sequence[str], others: Sequence[str]) -> str:
    """Return the title of a search.

    >>> _title(["data", "tp"], ["pipe"])
    'Meshes of data, tp; not searched: pipe (--mesh data=auto,tp=auto,pipe=auto)'
    """
    title = f"Meshes of {', '.join(searched)}"
    if not others:
        return title
    every = ",".join(f"{axis}={AUTO}" for axis in (*searched, *others))
    return f"{title}; not searched: {', '.join(others)} (--mesh {every})"


def search_study(keys: Mapping[str, object], *, compiled: int | None = None) -> Study:
    """Return the study that finds a model's best mesh.

    Unless a mesh is listed, the model's usual axes are searched. ``keys`` are those of a study: the
    model, the cluster, and other pinned or listed keys. Its title says which axes are searched, and
    which others ``mesh`` could name. On GPUs the memory limit of XLA's scheduler is raised if a
    candidate needs that and fits.
    """
    study_keys, model = dict(keys), str(keys[WORKLOAD])
    known_model = find_model(model)
    if known_model is None:
        raise ConfigError(f"{model} has no mesh to search", hint="name a model: hespas models")
    title = ""
    if MESH not in study_keys:
        searched, other_axes = searched_axes(known_model)
        study_keys[MESH] = dict.fromkeys(searched, AUTO)
        title = _title(searched, other_axes)
    has = known_model.options()
    if "remat" in has:
        study_keys.setdefault("remat", ["minimal_with_context", "full"])
    if "accumulation" in has:
        study_keys.setdefault("micro_batch", list(_MICRO_BATCHES))
    cluster_value = study_keys[CLUSTER]
    clusters = (
        cast("list[object]", cluster_value) if isinstance(cluster_value, list) else [cluster_value]
    )
    if all(platform_of(system_named(str(cluster)).part) == "cuda" for cluster in clusters):
        study_keys[SLOP_OPTION] = FULL
    goal = "tokens_per_s_per_device" if "sequence" in has else "samples_per_s"
    return study_of(
        {
            "title": title,
            "where": "memory.fits",
            "goal": {"maximise": goal},
            "budget": {} if compiled is None else {"compile": compiled},
            **study_keys,
        }
    )
