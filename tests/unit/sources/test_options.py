from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.sources.options import ModelOptions


def test_settings_may_be_numbers_as_well_as_text() -> None:
    given: Any = {"layers": 4, "scan": True, "remat": "full", "rope_theta": 1e4}
    texts = {"layers": "4", "scan": "true", "remat": "full", "rope_theta": "10000.0"}
    assert ModelOptions(settings=given).settings == texts


@pytest.mark.parametrize("value", [None, [4], {"a": 1}])
def test_what_is_no_text_and_no_number_is_refused(value: object) -> None:
    given: Any = {"layers": value}
    with pytest.raises(ConfigError, match="give text or a number"):
        ModelOptions(settings=given)
