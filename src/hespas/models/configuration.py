"""Read a model from the ``config.json`` of its weights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from math import log
from pathlib import Path
from typing import Any, cast

from hespas.base.configs import CONFIGS
from hespas.base.frozen import frozen
from hespas.base.suggest import nearest
from hespas.errors import ConfigError, refuse
from hespas.models.decoders import DECODERS
from hespas.models.fields import IGNORED, Fields
from hespas.models.language import MTP_NOTE, LanguageModel, shared_kinds
from hespas.models.network_model import Network, first_run, network_parameters
from hespas.models.network_readers import NETWORKS
from hespas.models.parameters import parameters
from hespas.models.quantization import UNQUANTISED, Precision, read_precision
from hespas.models.resnet_layers import ResNet

FILE = "config.json"
SHIPPED = CONFIGS / "models"
"""Published configurations, sizes only, as ``ORG/NAME.json``."""
_MTP_FIELDS = ("num_nextn_predict_layers", "num_mtp_modules")
_TYPING_ERRORS = 1
_UNLIKE = {
    "deepseek_v4": ": its tokens are compressed, and its rows are several",
    "falcon_mamba": ": its states decay by channel (Mamba-1)",
    "gemma3n": ": its rows are several, and parts of its activations are zero",
    "jamba": ": its states decay by channel (Mamba-1)",
    "mamba": ": its states decay by channel (Mamba-1)",
    "mllama": ": its layers attend to images, too",
    "mllama_text_model": ": its layers attend to images, too",
    "rwkv": ": its states decay by channel",
    "zamba2": ": its layers of attention share weights",
}
"""What hespas has no program for, of families that people ask for."""
_LENGTHS = (
    *("max_position_embeddings", "max_seq_len", "n_positions"),
    *("model_max_length", "seq_length"),
)
"""Fields with the tokens of the longest context: the first that there is."""
_MOST_PARAMETERS, _LONGEST = 1e14, 4096
_PARTS = ("thinker_config", "text_config", "llm_config", "language_config")
"""Where a configuration has its language model: the first that there is."""
_BESIDE = (
    *("vision_config", "audio_config", "vision_tower", "mm_vision_tower"),
    *("img_processor", "audio_processor", "embd_layer"),
)
_QUANTISED = ("quantization_config",)
"""Where a whole file says how weights are stored. What wraps a model of its own library also says
whether its embeddings are tied; what wraps another's (``llm_config``) leaves that to it."""
LEFT_OUT = "the model is the language model alone: what takes in images or sound is left out"
_DEFAULTS = SHIPPED.parent / "decoder_defaults.json"


@frozen
class Configuration:
    """A decoder as its configuration describes it.

    ``model`` has the steps' own defaults. ``longest`` are the tokens of the longest context;
    ``precision`` is that of the published weights. ``notes`` name what the model leaves out of the
    file.
    """

    name: str
    family: str
    model: LanguageModel | Network | ResNet
    longest: int
    precision: Precision = UNQUANTISED
    source: str = ""
    date: str = ""
    notes: tuple[str, ...] = ()


def is_known(values: Mapping[str, Any]) -> bool:
    """Return whether the family of a configuration is known."""
    if _network_kind(values) in NETWORKS:
        return True
    family = _language_part(Fields(values=values, location=""))[1]
    return family.removesuffix("_text") in DECODERS


def is_configuration(path: Path) -> bool:
    """Return whether a path is or holds a model's configuration."""
    if path.is_dir():
        return (path / FILE).is_file()
    if path.suffix != ".json" or not path.is_file():
        return False
    return any(name in path.read_text(errors="replace") for name in _MARKS)


_MARKS = ('"model_type"', '"architectures"', '"_class_name"')


def read_configuration(path: Path) -> Configuration:
    """Read a configuration: a file, or a directory with one.

    Raises `ConfigError` for one that can't be read, that is of an unknown family, or that has a
    field which is not understood.
    """
    file = path / FILE if path.is_dir() else path
    try:
        values: Any = json.loads(
            file.read_bytes(), object_pairs_hook=partial(_without_repeats, str(file))
        )
    except OSError as error:
        raise ConfigError(f"there is no {FILE}", location=str(path)) from error
    except ValueError as error:
        raise ConfigError(
            f"this is no JSON: {error}", location=str(file), hint="is the file whole?"
        ) from error
    refuse(not isinstance(values, dict), "a configuration is a JSON object", location=str(file))
    return configured(cast("dict[str, Any]", values), location=str(file), name=path.name)


def _without_repeats(location: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; raise `ConfigError` where a field has two values."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if values.setdefault(name, value) != value:
            raise ConfigError(
                f"{name} is given twice, as {values[name]!r} and as {value!r}",
                location=location,
                hint="keep one",
            )
    return values


def configured(values: Mapping[str, Any], *, location: str, name: str) -> Configuration:
    """Return the model that the fields of a configuration describe.

    Raises as `read_configuration`.
    """
    outer = Fields(values=values, location=location)
    if _network_kind(values) in NETWORKS:
        return _network(outer, name)
    fields, family = _language_part(outer)
    reader = DECODERS.get(family.removesuffix("_text"))
    if reader is None:
        raise _unknown_family(family, fields.values, location)
    notes = list[str]()
    heads = (fields.size(name, default=0, least=0) for name in _MTP_FIELDS)
    if any(list(heads)):
        notes.append(MTP_NOTE)
    refuse(
        fields.flag("is_encoder_decoder"), "models with an encoder are not known", location=location
    )
    fields.check_family(family.removesuffix("_text"))
    model = reader(fields)
    quantised = fields.part("quantization_config")
    precision, published = read_precision(quantised, layers=model.layers)
    notes += published
    fields.check_read()
    longest = next((size for name in _LENGTHS if (size := fields.size(name, default=0))), 0)
    notes += _reading_notes(outer, fields)
    model, window_notes = _without_long_windows(model, longest)
    notes += window_notes
    model = _runnable(model)
    _check(model, fields)
    return Configuration(
        name=name,
        family=family,
        model=model,
        longest=longest or _LONGEST,
        precision=precision,
        source=outer.text("source"),
        date=outer.text("date"),
        notes=tuple(notes),
    )


def _language_part(fields: Fields) -> tuple[Fields, str]:
    """Return the fields of the language model, and its ``model_type``.

    transformers writes of a part the fields alone that differ from its class' defaults; of a whole
    file, sizes are there, and others may not be.
    """
    family, part = fields.text("model_type"), fields
    while name := next((name for name in _PARTS if part.values.get(name) is not None), None):
        inner = part.part(name)
        values = dict(inner.values)
        shared = _QUANTISED if name == "llm_config" else (*_QUANTISED, "tie_word_embeddings")
        own = {key: part.values.get(key) for key in shared}
        values |= {key: value for key, value in own.items() if value is not None}
        part = replace(inner, values=values)
        family = part.text("model_type", default=family)
    known = _defaults().get(family.removesuffix("_text"), {})
    if part is fields:
        return replace(part, fallbacks=known), family
    return replace(part, defaults=known), family


def _reading_notes(fields: Fields, part: Fields) -> list[str]:
    """Return notes on what the model leaves out or assumes.

    ``part`` are the fields of the language model, after they were read.
    """
    is_inside = part.values is not fields.values
    has_beside = any(fields.values.get(name) for name in _BESIDE)
    notes = [LEFT_OUT] if is_inside or has_beside else []
    known = {**part.fallbacks, **part.defaults}
    assumed = [
        f"{name} = {json.dumps(known[name])}"
        for name in sorted(part.assumed)
        if known[name] is not False
    ]
    if assumed:
        notes.append(
            f"the model is of fields that its file does not have: {', '.join(assumed)}, as in "
            "transformers 5.24"
        )
    return notes


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(_DEFAULTS.read_bytes())


def _without_long_windows(
    model: LanguageModel, longest: int
) -> tuple[LanguageModel, tuple[str, ...]]:
    """Drop windows as long as the context, with a note."""
    long = {kind.window for kind in model.pattern if longest and kind.window >= longest}
    if not long:
        return model, ()
    kinds = (replace(kind, window=0) if kind.window in long else kind for kind in model.pattern)
    note = f"windows of {min(long)} tokens hold all of a context of {longest}, and are left out"
    return replace(model, pattern=tuple(kinds)), (note,)


def _network_kind(values: Mapping[str, Any]) -> str:
    return str(values.get("model_type") or values.get("_class_name") or "")


def _network(fields: Fields, name: str) -> Configuration:
    kind = _network_kind(fields.values)
    fields.ignore("model_type", "_class_name")
    fields.check_family(kind)
    design = NETWORKS[kind](fields)
    fields.check_read()
    model = design
    if not isinstance(design, ResNet):
        model = Network(design=design, run=first_run(design))
        _check_count(network_parameters(model), fields)
    return Configuration(
        name=name,
        family=kind,
        model=model,
        longest=getattr(design, "longest", None) or 0,
        source=fields.text("source"),
        date=fields.text("date"),
    )


_NEAR = 0.5
"""The part of what an unknown family's fields say that a near one must have, too."""


def _unknown_family(family: str, values: Mapping[str, Any], location: str) -> ConfigError:
    if not family:
        return ConfigError(
            "there is no model_type, which says how the model is put together",
            location=location,
            hint=f"known: {', '.join((*DECODERS, *NETWORKS))}",
        )

    plain = family.removesuffix("_text")
    close = [name for name in nearest(plain, (*DECODERS, *NETWORKS)) if _is_one_letter(name, plain)]
    shipped, own_fields = _shipped_fields(), _structural(set(values))
    likest = close[0] if close else _likest(own_fields, shipped)
    near = "no family that is known is near"
    if likest is not None:
        extra = sorted(own_fields - shipped.get(likest, own_fields))
        differs = f", which has no {', '.join(extra[:5])}" if extra else ""
        near = f"the nearest that is known is {likest}{differs}"
    return ConfigError(
        f"model_type {family!r} is not known{_UNLIKE.get(plain, '')}",
        location=location,
        hint=f"{near}; torch:hf:DIRECTORY runs what the library computes",
    )


def _likest(own_fields: set[str], shipped: Mapping[str, set[str]]) -> str | None:
    """Return the family with most of the fields, None if none has the half of what they say.

    A field says the more the fewer families have it.
    """
    families = Counter(name for fields in shipped.values() for name in fields)

    def weight(fields: set[str]) -> float:
        return sum(log((1 + len(shipped)) / max(1, families[name])) for name in fields)

    def likeness(family: str) -> tuple[float, float]:
        fields = shipped[family]
        return weight(own_fields & fields), -weight(fields - own_fields)

    likest = max(shipped, key=likeness)
    is_near = weight(own_fields & shipped[likest]) >= _NEAR * weight(own_fields)
    return likest if own_fields and is_near else None


def _is_one_letter(first: str, second: str) -> bool:
    """Return whether two names differ by at most one letter."""
    return abs(len(first) - len(second)) <= _TYPING_ERRORS and (
        sum((Counter(first) - Counter(second)).values()) <= _TYPING_ERRORS
    )


def _structural(names: set[str]) -> set[str]:
    """Return the fields that may describe a model's structure."""
    return {name for name in names if not IGNORED.fullmatch(name)} - {"model_type"}


def _shipped_fields() -> dict[str, set[str]]:
    fields: dict[str, set[str]] = {}
    for file in sorted(SHIPPED.glob("*/*.json")):
        values = json.loads(file.read_bytes())
        values = values.get("text_config", values)
        family = _network_kind(values).removesuffix("_text")
        if family in DECODERS or family in NETWORKS:
            fields.setdefault(family, set()).update(_structural(set(values)))
    return fields


def _runnable(model: LanguageModel) -> LanguageModel:
    """Limit tokens to learned positions, and merge equal kinds.

    Where they differ only in experts behind dense layers, their number says so.
    """
    kinds, routing = model.pattern, model.routing
    tokens = min(model.sequence, model.style.learned_positions or model.sequence)
    model = replace(model, run=replace(model.run, sequence=tokens))
    if not any(kind.is_routed for kind in kinds):
        model = replace(model, routing=None)
    elif routing is not None:
        dense = next((index for index, kind in enumerate(kinds) if kind.is_routed), len(kinds))
        plain = replace(model, pattern=(), routing=replace(routing, dense_layers=dense))
        if plain.kinds == kinds:
            return plain
    return replace(model, pattern=kinds[:1] if len(set(kinds)) == 1 else shared_kinds(kinds))


def _check_count(count: int, fields: Fields) -> None:
    fields.refuse(count > _MOST_PARAMETERS, f"these are {count:.2g} parameters", "check the sizes")


def _check(model: LanguageModel, fields: Fields) -> None:
    _check_count(parameters(model), fields)
    try:
        model.check()
    except ConfigError as error:
        raise ConfigError(error.message, location=fields.location, hint=error.hint) from error
