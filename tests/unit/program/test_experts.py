from __future__ import annotations

import pytest

from hespas.program.experts import UNIFORM, ExpertLoad


def test_the_busiest_device_is_found_layer_by_layer() -> None:
    load = ExpertLoad(layers=((0.4, 0.2, 0.2, 0.2), (0.1, 0.1, 0.1, 0.7)))
    # The first layer waits for the first device (0.6), the second for the second (0.8).
    assert load.busiest(experts=4, devices=2) == pytest.approx((0.55, 0.15))
    assert sum(load.busiest(experts=4, devices=2)) == pytest.approx(0.7)
    assert load.busiest(experts=4, devices=4) == pytest.approx((0.55,))
    assert sum(load.busiest(experts=4, devices=1)) == pytest.approx(1.0)


def test_what_is_more_than_a_share_is_over_on_every_device() -> None:
    load = ExpertLoad(layers=((0.5, 0.3, 0.1, 0.1),))
    assert load.beyond(0.25, experts=4, devices=4) == pytest.approx(0.25 + 0.05)
    assert load.beyond(0.6, experts=4, devices=2) == pytest.approx(0.2)
    assert UNIFORM.beyond(0.25, experts=4, devices=4) == 0.0
