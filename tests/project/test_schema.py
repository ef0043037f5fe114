"""The published schema is that of the code: ``hespas schema > docs/reference/run.schema.json``."""

from __future__ import annotations

from pathlib import Path

from hespas.base.files import json_bytes
from hespas.prediction.figures.schema import run_schema


def test_the_published_schema_is_that_of_the_code() -> None:
    assert Path("docs/reference/run.schema.json").read_bytes() == json_bytes(run_schema())
