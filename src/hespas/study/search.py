"""Studies that find a model's best mesh."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import yaml

from hespas.base.files import write_file
from hespas.base.home import data_home
from hespas.compile.options import FULL, SLOP_OPTION
from hespas.errors import ConfigError
from hespas.models.catalogue import find_model
from hespas.models.configured import STEPS
from hespas.models.model import PIPE, Model
from hespas.models.software import software_named
from hespas.sources.source import platform_of, unknown_workload
from hespas.study.keys import CLUSTER, MESH, SETTINGS, SOFTWARE, WORKLOAD
from hespas.study.space import candidates_of, system_named
from hespas.study.study import AUTO, Study, listed, study_of

SEARCHES = "searches"
STUDY_FILE = "study.yaml"
_LONGEST_NAME = 60
_MICRO_BATCHES = (1, 2, 4)
_DECODED = 16
"""Sequences of a device in the searches of decode steps."""
_HOW_ACCUMULATED = frozenset({"micro_batch", "micro_batches"})
_BATCHES = frozenset({"batch", "global_batch"})
_ON_REQUEST = frozenset({"context", "sequence"})
"""Axes for long sequences, which are searched only if they are named."""


def searched_axes(model: Model, *, has_software: bool = False) -> tuple[list[str], list[str]]:
    """Return the mesh axes searched by default, and on request.

    A framework's runs have stages, one or several, whose states are divided along ``fsdp``.
    """
    searched = [axis for axis in model.axes if axis not in _ON_REQUEST]
    request_axes = [axis for axis in model.axes if axis in _ON_REQUEST]
    if not model.can_be_cut:
        return searched, request_axes
    if has_software:
        return [PIPE, *(axis for axis in searched if axis != "data")], ["data", *request_axes]
    return searched, [*request_axes, PIPE]


EVERY, STAGED = "every", "staged"


def axes_named(name: str, keys: Mapping[str, object]) -> dict[str, str]:
    """Return the axes that a search's mesh goes through, by a name.

    ``every`` axis of the model, or ``staged``: the usual ones and stages. Raises `ConfigError` for
    other names.
    """
    choices = (EVERY, STAGED)
    if name not in choices:
        raise ConfigError(f"{name!r} names no axes", hint=f"choose one of {', '.join(choices)}")
    searched, others = searched_axes(_model_of(keys), has_software=SOFTWARE in keys)
    return dict.fromkeys(
        [*searched, *(axis for axis in others if name == EVERY or axis == PIPE)], AUTO
    )


def _model_of(keys: Mapping[str, object]) -> Model:
    """Return the model that keys name, with the step that they ask for."""
    model = str(keys[WORKLOAD])
    step = next((step for step in STEPS if keys.get(step) is True), "")
    known_model = find_model(f"{model}:{step}" if step else model)
    if known_model is None and not Path(model).exists():
        raise unknown_workload(model, step)
    if known_model is None:
        raise ConfigError(f"{model} has no mesh to search", hint="name a model: hespas models")
    return known_model


def _title(searched: Sequence[str], on_request: Sequence[str]) -> str:
    """Return the title of a search.

    >>> _title(["data", "tp"], ["pipe"])
    'Meshes of data, tp; not searched: pipe (--mesh data=auto,tp=auto,pipe=auto)'
    """
    title = f"Meshes of {', '.join(searched)}"
    if not on_request:
        return title
    every = ",".join(f"{axis}={AUTO}" for axis in (*searched, *on_request))
    return f"{title}; not searched: {', '.join(on_request)} (--mesh {every})"


def _device_batch(study_keys: Mapping[str, object], known_options: Collection[str]) -> int:
    """Return each device's largest number of sequences."""
    if "accumulation" not in known_options:
        return _DECODED if "context" in known_options else 1
    sizes = [1, *(size for key in _HOW_ACCUMULATED for size in listed(study_keys.get(key)))]
    return max(size for size in sizes if isinstance(size, int))


def _recomputed(study_keys: Mapping[str, object]) -> list[str]:
    """Return what backward passes compute again: a framework's choice, or everything."""
    frameworks = [software_named(str(name)) for name in listed(study_keys.get(SOFTWARE, []))]
    if not frameworks:
        return ["minimal_with_context", "full"]
    own = (framework.settings["remat"] for framework in frameworks)
    every = (framework.full_remat for framework in frameworks)
    return list(dict.fromkeys([*own, *every]))


def search_study(keys: Mapping[str, object], *, compiled: int | None = None) -> Study:
    """Return the study that finds a model's best mesh.

    ``keys`` are those of a study: the model, the cluster, and other pinned or listed keys. Unless a
    mesh is listed, the model's usual axes are searched. Without a batch all candidates have the
    same one: for each device the largest micro-batch, or 16 sequences that decode. The title states
    the searched axes, those that ``mesh`` could add, and the batch. On GPUs the memory limit of
    XLA's scheduler is raised if a candidate needs that and fits.
    """
    study_keys, known_model = dict(keys), _model_of(keys)
    title, has_software = "", SOFTWARE in study_keys
    if MESH not in study_keys:
        searched, other_axes = searched_axes(known_model, has_software=has_software)
        study_keys[MESH] = dict.fromkeys(searched, AUTO)
        title = _title(searched, other_axes)
    has = known_model.options()
    if "remat" in has:
        study_keys.setdefault("remat", _recomputed(study_keys))
    if has_software and "sequence_parallel" in has:
        # Frameworks divide rows between products over the devices of tensor parallelism, too.
        given = cast("Mapping[str, object]", study_keys.get(SETTINGS, {}))
        study_keys[SETTINGS] = {"sequence_parallel": True, **given}
    systems = [system_named(str(cluster)) for cluster in listed(study_keys[CLUSTER])]
    accumulates, is_inference = "accumulation" in has, "cache_dtype" in has
    if accumulates and not _HOW_ACCUMULATED & set(study_keys):
        study_keys["micro_batch"] = list(_MICRO_BATCHES)
    if (accumulates or is_inference) and not _BATCHES & set(study_keys):
        devices = max(system.device_count for system in systems)
        batch = devices * _device_batch(study_keys, has)
        study_keys["global_batch"] = batch
        title = "; ".join(filter(None, [title, f"{batch:,} sequences a step (--global-batch)"]))
    has_compiler = not (is_inference or has_software)
    if has_compiler and all(platform_of(system.part) == "cuda" for system in systems):
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


def searches_home() -> Path:
    """Return the default directory of searches."""
    return data_home() / SEARCHES


def search_directory(home: Path, study: Study) -> Path:
    """Return the directory of a search, with its study file.

    A directory that has this study is used again, so that no prediction is repeated. Raises
    `ConfigError` for a study without candidates.
    """
    candidates_of(study)
    text = yaml.safe_dump(study.to_dict(), sort_keys=False).encode()
    about = " ".join(
        Path(str(value)).name for key in (WORKLOAD, CLUSTER) for value in study.search[key]
    )
    base = re.sub(r"[^a-z0-9]+", "-", about.lower()).strip("-")[:_LONGEST_NAME]
    number = 1
    while (file := home / f"{base}-{number}" / STUDY_FILE).parent.exists():
        if file.is_file() and file.read_bytes() == text:
            return file.parent
        number += 1
    file.parent.mkdir(parents=True)
    write_file(file, text)
    return file.parent
