from __future__ import annotations

import re
from pathlib import Path

from hespas.report.page.vega import PALETTE, SCHEMA, large_unit, time_unit

ASSETS = Path("src/hespas/report/page/assets")


def test_the_specifications_are_of_the_library_that_is_in_the_package() -> None:
    version = re.findall(r'version="?(\d+)\.\d+\.\d+', (ASSETS / "vega.min.js").read_text())
    assert version
    major = re.search(r'"(6)\.\d+\.\d+"', (ASSETS / "vega-lite.min.js").read_text())
    assert major is not None
    assert SCHEMA.endswith(f"/v{major[1]}.json")


def test_every_library_has_its_licence() -> None:
    for library in ASSETS.glob("*.min.js"):
        licence = ASSETS / f"LICENSE.{library.name.removesuffix('.min.js')}"
        assert "Redistribution and use in source and binary forms" in licence.read_text()


def test_units_fit_the_figures() -> None:
    assert (time_unit(0.0).name, time_unit(2e-5).name, time_unit(3.0).name) == ("ns", "µs", "s")
    assert large_unit(80e9, "B").of(40e9) == 40.0


def test_hues_differ() -> None:
    assert len(set(PALETTE)) == len(PALETTE)
