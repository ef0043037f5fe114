"""The page of models says what their descriptions say."""

from __future__ import annotations

import model_reference


def test_the_page_is_current() -> None:
    text = model_reference.PAGE.read_text()
    assert model_reference.made(text) == text, "run python validation/model_reference.py"
