from __future__ import annotations

import pytest

from hespas.base.fields import overridden
from hespas.errors import ConfigError
from hespas.prediction.options import Fidelity, PredictOptions
from hespas.prediction.overrides import ModelOverrides, Overrides, PipelinedOverrides
from hespas.simulate.options import Model

_NAMES = sorted(
    {
        *Overrides.__annotations__,
        *ModelOverrides.__annotations__,
        *PipelinedOverrides.__annotations__,
    }
)


@pytest.mark.parametrize("name", _NAMES)
def test_an_override_is_a_field_of_the_options(name: str) -> None:
    assert overridden(PredictOptions(), {name: None}) == PredictOptions()

    with pytest.raises(ConfigError):
        overridden(PredictOptions(), {name: object(), "batch": "not a number"})


def test_texts_are_read_as_those_of_flags() -> None:
    options = overridden(
        PredictOptions(),
        {"mesh": "fsdp=4", "fidelity": "fused", "model": "hespas", "memory_bandwidth": "2TB/s"},
    )

    assert options.program.model.mesh is not None
    assert options.program.model.mesh.device_count == 4
    assert options.compile.fidelity is Fidelity.FUSED
    assert options.network.model is Model.HESPAS
    assert options.estimate.memory_bandwidth == 2e12


def test_what_no_override_names_stays_as_it_was() -> None:
    base = overridden(PredictOptions(), {"sequence": 128})

    assert overridden(base, {"batch": 2}).program.model.sequence == 128


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sequenc", 128, "there is no option sequenc"),
        ("sequence", "128 tokens", "sequence is '128 tokens'"),
        ("scan", "yes", "scan is 'yes'"),
        ("batch", True, "batch is True"),
        ("fidelity", "compild", "fidelity is 'compild'"),
    ],
)
def test_a_wrong_name_or_type_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        overridden(PredictOptions(), {name: value})
