"""Write the parts of docs/reference/models.md that follow from the descriptions of models.

    python validation/model_reference.py

A part stands between ``<!-- made NAME -->`` and ``<!-- end -->``: the models of the zoo with the
axes that divide them, the families of configurations that are read, and the figures of all models
whose configurations are shipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from hespas.models.catalogue import models
from hespas.models.configuration import SHIPPED, read_configuration
from hespas.models.configured import published
from hespas.models.decoders import DECODERS
from hespas.models.figures import ModelFigures, model_figures
from hespas.models.language import LanguageModel
from hespas.models.model import Model
from hespas.models.network_readers import NETWORKS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "models.md"
_PART = re.compile(r"(?<=<!-- made )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
_AXES = ("data", "fsdp", "tp", "expert", "context", "sequence")
_GPU = "H100_80GB"


def made(text: str) -> str:
    """Return a page with its parts as the descriptions say now."""
    parts = {
        "zoo": lambda: _table(("models", "what", "mesh axes"), _zoo()),
        "families": lambda: f"{_listed(DECODERS)}; and the networks {_listed(NETWORKS)}.\n",
        "published": lambda: _table(
            (
                "model",
                "family",
                "parameters",
                "active",
                "FLOPs",
                "KV bytes",
                "training",
                "inference",
            ),
            map(_row, published()),
        ),
    }
    return _PART.sub(lambda found: f"{found[1]}{found[2]}{parts[found[1]]()}", text)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _zoo() -> Iterator[list[str]]:
    """Yield rows of the zoo: neighbours that are alike but for their sizes."""
    zoo = [model for name, model in models().items() if not name.endswith(("-prefill", "-decode"))]
    for (what, axes), alike in groupby(zoo, lambda model: (_what(model), _axes(model))):
        yield [_listed(model.name for model in alike), what, axes]


def _what(model: Model) -> str:
    """Return what a model is, without its sizes."""
    settings = model.settings
    if not isinstance(settings, LanguageModel):
        return model.summary
    sizes, style, routing = settings.sizes_of_layers, settings.style, settings.routing
    features = {
        "latent attention": settings.latent is not None,
        "grouped heads": settings.kv_heads < sizes.heads,
        "windows in most layers": settings.is_windowed,
        "caps of scores": bool(style.score_cap),
        "layer norms": style.norm == "layer",
        "norms before and after": style.norms_after,
        "learned positions": bool(style.learned_positions),
        "tokens looked up by a product": style.one_hot,
    }
    named = [name for name, has in features.items() if has]
    if routing is not None:
        shared = " and a shared one" if routing.shared_width else ""
        named.append(f"{routing.chosen} of {routing.experts} experts{shared} for a token")
    return f"training step of a decoder: {', '.join(named) or 'plain'}"


def _axes(model: Model) -> str:
    settings = model.settings
    if not isinstance(settings, LanguageModel):
        return "`expert`" if "experts" in model.options() else "any"
    divided = {axis for axes in settings.axes.values() for axis in axes}
    if settings.routing is None:
        divided -= {"expert"}
    return _listed(axis for axis in _AXES if axis in divided)


def _row(name: str) -> list[str]:
    configuration = read_configuration(SHIPPED / f"{name}.json")
    figures = model_figures(configuration, name=name)
    return [
        f"`{name}`",
        f"`{configuration.family}`",
        f"{figures.parameters / 1e9:.4g} B",
        f"{figures.active_parameters / 1e9:.4g} B",
        _flops(figures),
        f"{figures.kv_bytes_per_token:,}",
        *_devices(figures.smallest_cluster),
    ]


def _flops(figures: ModelFigures) -> str:
    if figures.flops_per_token is None:
        return f"{(figures.flops_per_sample or 0) / 1e12:.4g} T a sample"
    return f"{figures.flops_per_token / 1e9:.4g} G"


def _devices(clusters: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for step in ("training", "inference"):
        yield clusters[step][_GPU].partition("x")[0] or "none"


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
