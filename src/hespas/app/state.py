"""The page's question, as options and as commands to copy.

A state has the keys of a study (`hespas.study.keys`), each with one value, the mesh as sizes by
axis, and ``fidelity``. Only keys that the page has can be given: none of them writes a file or runs
a program.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from hespas.base.fields import options_by_field
from hespas.base.suggest import choice, suggestion
from hespas.errors import ConfigError
from hespas.hardware.presets import device_names
from hespas.models.configuration import is_configuration
from hespas.models.model import MeshAxes
from hespas.prediction.options import CompileChoice, Fidelity, PredictOptions
from hespas.prediction.workload import source_of
from hespas.program.recorded import is_recorded_file
from hespas.sources.source import FileSource, ModelSource, Source
from hespas.study.keys import CLUSTER, MESH, SETTINGS, WORKLOAD, known_keys, scalar_text
from hespas.study.space import Candidate, candidate_of
from hespas.study.study import study_of

FIDELITY = "fidelity"
_KNOBS = (
    *("batch", "global_batch", "micro_batch", "micro_batches", "sequence", "attention", "remat"),
    *("scan", "dtype", "prefill", "decode", "software", "schedule", "overlap", "ignore_memory"),
    *("network_model", "algorithm", "link_bandwidth", "imperfect", "place", "devices"),
    *("memory_bandwidth", "peak_flops", "power_limit_w", "launch_overhead"),
    "memory_limit_slop_factor",
)
_NODE = "node"
KEYS = frozenset({WORKLOAD, CLUSTER, MESH, SETTINGS, FIDELITY, _NODE, *_KNOBS})
"""The keys that a state can have."""
State = Mapping[str, Any]
_MOST_TEXT = 4096


def check_keys(keys: State, *, more: frozenset[str] = frozenset()) -> None:
    """Raise `ConfigError` for a key that is neither the page's nor one of ``more``.

    A link may come from anyone: no key of the page writes a file or runs a program.
    """
    for name, value in keys.items():
        if name not in KEYS | more:
            raise ConfigError(f"there is no key {name!r}", hint=suggestion(name, KEYS | more))
        if name == _NODE and value not in device_names():
            # A file of one's own may name programs that price kernels.
            raise ConfigError(
                f"{value!r} is no preset", hint=suggestion(str(value), device_names())
            )
        if len(str(value)) > _MOST_TEXT:
            raise ConfigError(f"{name} is longer than {_MOST_TEXT} characters", hint="shorten it")


def _checked(state: State) -> Candidate:
    """Return the candidate of a state, else raise `ConfigError`."""
    check_keys(state)
    # One device is divided along no axis.
    given = {name: value for name, value in state.items() if (name, value) != (MESH, {})}
    return candidate_of({name: value for name, value in given.items() if name != FIDELITY})


def options_of(state: State) -> PredictOptions:
    """Return the options of a state's prediction, else raise `ConfigError`.

    >>> options_of({"model": "llama3-8b", "cluster": "8xH100_80GB", "mesh": {"fsdp": 8},
    ...             "fidelity": "fused"}).compile.requested.value
    'fused'
    """
    options = _checked(state).options()
    fidelity = choice(str(state.get(FIDELITY, Fidelity.AUTO.value)), Fidelity, subject=FIDELITY)
    return replace(options, compile=CompileChoice(fidelity=fidelity))


def runs_code(state: State) -> str:
    """Return the workload that runs user code, or "".

    Models and files of programs are read; functions, scripts, and what other packages lower, are
    run.
    """
    options = options_of({key: state[key] for key in (WORKLOAD, CLUSTER) if key in state})
    file = Path(str(state.get(WORKLOAD, "")))
    is_json = file.suffix == ".json" and file.is_file()
    if is_json and not (is_configuration(file) or is_recorded_file(file)):
        _check_json(file)
        raise ConfigError(
            "this JSON is neither a model's configuration nor a recorded step",
            location=file.name,
            hint="a config.json of Hugging Face has model_type",
        )
    source, _ = source_by_any_mesh(options)
    return "" if isinstance(source, ModelSource | FileSource) else source.name


def source_by_any_mesh(options: PredictOptions) -> tuple[Source, ConfigError | None]:
    """Return the workload, and why its usual mesh is refused.

    Where the mesh that a model takes by default does not divide it, the model of one device stands
    for it. Raises what `hespas.prediction.workload.source_of` raises for other reasons.
    """
    try:
        return source_of(options), None
    except ConfigError as error:
        program, network = options.program, replace(options.network, cluster=None)
        undivided = replace(options, program=replace(program, devices=1), network=network)
        try:
            return source_of(undivided), error
        except ConfigError:
            raise error from None


def _check_json(file: Path) -> None:
    """Raise `ConfigError` for a file that is no JSON."""
    try:
        msgspec.json.decode(file.read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"this is not JSON: {error}",
            location=file.name,
            hint="upload the config.json as it came with the model",
        ) from error


def _values(state: State) -> dict[str, object]:
    """Return a state's options as texts and switches, by name."""
    candidate = _checked(state)
    values: dict[str, object] = {}
    for key, value in candidate.values.items():
        if key != WORKLOAD:
            name = known_keys()[key].name
            values[name] = value if isinstance(value, bool) else scalar_text(value)
    if candidate.mesh is not None:
        axes = tuple((name, size) for name, size in candidate.mesh if size > 1)
        values[MESH] = str(MeshAxes(axes=axes or candidate.mesh[:1]))
    if candidate.settings:
        texts = {name: scalar_text(value) for name, value in candidate.settings.items()}
        values[SETTINGS] = texts
    if state.get(FIDELITY, Fidelity.AUTO.value) != Fidelity.AUTO.value:
        values[FIDELITY] = str(state[FIDELITY])
    return values


def command_of(state: State) -> str:
    """Return the command line that answers a state.

    >>> command_of({"model": "llama3-8b", "cluster": "8xH100_80GB", "mesh": {"fsdp": 4, "tp": 2}})
    'hespas run llama3-8b --cluster 8xH100_80GB --mesh fsdp=4,tp=2'
    """
    words = ["hespas", "run", str(state.get(WORKLOAD, ""))]
    for name, value in _values(state).items():
        flag = f"--{name.replace('_', '-')}"
        match value:
            case True:
                words.append(flag)
            case False:
                words += ["--unrolled"] if name == "scan" else []
            case dict():
                for key, text in cast("dict[str, str]", value).items():
                    words += [flag, f"{key}={text}"]
            case _:
                words += [flag, str(value)]
    return shlex.join(words)


def python_of(state: State) -> str:
    """Return the Python that answers a state."""
    options = options_by_field(PredictOptions)
    fields = {option.name: field for field, option in options.items()}
    values = _values(state)
    mesh, cluster = values.pop(MESH, None), values.pop(CLUSTER, None)
    is_staged = options_of(state).is_pipeline
    arguments = [repr(str(state.get(WORKLOAD, "")))]
    if cluster is not None:
        arguments.append(repr(cluster) if is_staged else f"cluster={cluster!r}")
    if mesh is not None:
        arguments.append(f"mesh={mesh!r}")
    for name, value in values.items():
        field = "network_model" if is_staged and name == "model" else fields[name]
        is_count = isinstance(value, str) and value.isdecimal()
        arguments.append(f"{field}={value if is_count else repr(value)}")
    function = "predict_pipeline" if is_staged else "predict"
    listed = "".join(f"    {argument},\n" for argument in arguments)
    return f"import hespas\n\nprediction = hespas.{function}(\n{listed})\nprint(prediction)\n"


def study_file_of(state: State) -> str:
    """Return a state as a study of one candidate."""
    keys = _checked(state).to_dict()
    if FIDELITY in state:
        keys[FIDELITY] = state[FIDELITY]
    study_of(keys)
    return yaml.safe_dump(keys, sort_keys=False)


def copies_of(state: State) -> dict[str, str]:
    """Return a state as command line, Python and study."""
    return {"command": command_of(state), "python": python_of(state), "study": study_file_of(state)}
