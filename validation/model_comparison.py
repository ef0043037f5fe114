"""Hold what hespas says of published models against counts of transformers, and model cards.

``python validation/model_comparison.py`` writes the tables of docs/evidence/models.md from the
counts that `model_judge` recorded, the logits that `model_values` compared, and hespas' figures.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hespas.errors import HespasError
from hespas.models.configured import configuration_of
from hespas.models.figures import ModelFigures, model_figures
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes
from hespas.models.network_model import Learning, Network, run_of
from hespas.models.resnet_layers import ResNet

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "validation" / "measurements"
VALUES = RECORDED / "model_values.json"
PAGE = ROOT / "docs" / "evidence" / "models.md"
SHORT, LONG = 128, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A model's figures, and what its own library and its card say."""

    figures: ModelFigures
    counted: dict[str, str]
    card: dict[str, str]
    network: Network | ResNet | None = None

    @property
    def parameters(self) -> int:
        """The elements of the library's parameters and of what else a checkpoint holds.

        The running means of a ResNet are states.
        """
        buffers = 0 if isinstance(self.network, ResNet) else int(self.counted["buffers"])
        return int(self.counted["parameters"]) + buffers

    def flops_error(self, prefix: str, tokens: int) -> float | None:
        """Return by how much the FLOPs of a forward differ; None where they were not counted.

        Attention is among all tokens.
        """
        counted = self.counted[f"{prefix}flops"]
        network = self.network
        if isinstance(network, ResNet):
            return (self.figures.flops_per_sample or 0) / int(counted) - 1 if counted else None
        if network is not None:
            return _network_flops(network, tokens) / int(counted) - 1 if counted else None
        if not counted or self.counted[f"{prefix}input"] != f"{tokens} tokens":
            return None
        figures = self.figures
        own = (figures.flops_per_token or 0) + tokens * (figures.attention_flops_per_token or 0)
        return tokens * own / int(counted) - 1


def recorded(name: str) -> list[dict[str, str]]:
    """Read one of the recorded tables."""
    with (RECORDED / name).open() as file:
        return list(csv.DictReader(file))


def compared() -> Iterator[Compared]:
    """Yield each model that hespas reads and its library builds."""
    cards = {row["name"]: row for row in recorded("model_cards.csv")}
    for row in recorded("model_counts.csv"):
        try:
            configuration = configuration_of(row["name"])
        except HespasError:
            continue
        if configuration is not None and row["library"]:
            figures = model_figures(configuration, name=row["name"])
            model = configuration.model
            network = None if isinstance(model, LanguageModel) else model
            card = cards.get(row["name"], {"parameters": "", "active_parameters": ""})
            yield Compared(figures=figures, counted=row, card=card, network=network)


def _network_flops(network: Network, tokens: int) -> float:
    """Return the FLOPs of a sample of as many tokens, or of what is known of the network."""
    run = run_of(network.design, "training", MeshAxes(axes=(("data", 1),)))
    given = min(tokens, getattr(network.design, "longest", None) or tokens)
    if isinstance(run, Learning) and network.design.objective == "tokens":
        run = replace(run, sequence=given, source=run.source and given)
    return replace(network, run=run).flops


def counts_table(models: list[Compared]) -> str:
    """Return the table of parameters, FLOPs and caches."""
    heads = ("model", "parameters", "card", "active", "card", "FLOPs, 128", "4096", "KV, bytes")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines.extend(f"| {' | '.join(_cells(model))} |" for model in models)
    return "\n".join(lines)


def _cells(model: Compared) -> list[str]:
    figures, card = model.figures, model.card
    kept = int(model.counted["kv_elements"] or 0)
    cached = figures.kv_bytes_per_token
    has_experts = figures.active_parameters != figures.parameters
    return [
        f"`{figures.name}`",
        f"{figures.parameters:,}{_off(figures.parameters, model.parameters)}",
        _billions(float(card["parameters"])) if card["parameters"] else "",
        _billions(figures.active_parameters) if has_experts else "",
        _billions(float(card["active_parameters"])) if card["active_parameters"] else "",
        _percent(model.flops_error("", SHORT)),
        _percent(model.flops_error("long_", LONG)),
        f"{cached:,}{_off(cached, 2 * kept) if kept else ''}" if cached else "",
    ]


def _off(own: int, theirs: int) -> str:
    return "" if own == theirs else f" ({theirs:,})"


def _billions(count: float) -> str:
    return f"{count / 1e9:.4g} B"


def _percent(error: float | None) -> str:
    if error is None:
        return ""
    return f"{100 * error:+.2f} %" if abs(error) >= 5e-5 else "equal"


def values_table() -> str:
    """Return the table of logits."""
    heads = ("case", "of", "left out", "largest", "largest difference")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name, case in json.loads(VALUES.read_text()).items():
        found = str(case.get("difference") or f"none: {case['refused']}")
        published = f"`{case['configuration'] or case['class']}`"
        lines.append(f"| {name} | {published} | {case['left_out']} | {case['largest']} | {found} |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """Return the page with its tables as they are recorded and predicted."""
    text = between(text, "counts", counts_table(list(compared())))
    return between(text, "values", values_table())


def between(text: str, name: str, made: str) -> str:
    """Return a page with what stands between two marks replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
