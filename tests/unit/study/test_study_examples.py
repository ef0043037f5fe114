"""The studies of examples/ are read, have candidates, and stand on their page."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.study.space import candidates_of
from hespas.study.study import read_study

ROOT = Path(__file__).parents[3]
STUDIES = sorted((ROOT / "examples" / "studies").glob("*.yaml"))
COUNTS = {
    "collectives": 9,
    "llama2_scaling": 6,
    "llama_sizes": 24,
    "mesh_70b": 270,
    "parts": 12,
    "per_dollar": 18,
    "products": 8,
    "resnets": 5,
    "tensor_parallel": 12,
}


@pytest.mark.parametrize(
    "path", [each for each in STUDIES if each.name != "prices.yaml"], ids=lambda path: path.stem
)
def test_a_study_is_read_and_stands_on_its_page(path: Path) -> None:
    assert len(candidates_of(read_study(path))) == COUNTS[path.stem]
    pages = [ROOT / "docs" / "evidence" / "studies.md", ROOT / "docs" / "how-to" / "studies.md"]
    assert any(path.name in page.read_text() for page in pages)
