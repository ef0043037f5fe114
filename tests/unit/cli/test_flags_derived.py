"""A new option is one field: its flag, key, help and checks derive from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hespas.base.fields import Layer, build, check_effects, declare, joined, options_in
from hespas.cli import flags
from hespas.errors import ConfigError
from hespas.prediction.configuration import configuration_form, read_configuration
from hespas.prediction.options import PredictOptions


class Roast(Enum):
    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coffee:
    """Options as a stage would declare them."""

    roast: Roast = declare(help="How to roast.", key="roast", default=Roast.LIGHT)
    cups: int | None = declare(
        help="How many cups.", name="cup_count", aliases=("num_cups",), key="c", least=1
    )
    milk: bool = declare(help="Add milk.", default=False)
    sugar: str | None = declare(help="Which sugar.", needs="milk", one_of="sweet")
    honey: bool = declare(help="Add honey.", one_of="sweet", key="honey", default=False)
    grams: float | None = declare(
        help="How much, as in 8g.", parse=lambda text: float(str(text).removesuffix("g"))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakfast:
    coffee: Coffee = field(default_factory=Coffee)


def command(section: type[object]) -> click.Command:
    @click.command()
    @flags.derived(section)
    def run(**given: object) -> None:
        built: object = flags.built(section, given)
        click.echo(repr(built))

    return run


def test_flags_and_help_derive_from_the_fields() -> None:
    shown = CliRunner().invoke(command(Breakfast), ["--help"]).output
    text = " ".join(shown.split())
    assert "--roast [light|dark] How to roast (default: light)." in text
    assert "--cup-count N How many cups." in text
    assert "--sugar TEXT Which sugar; needs --milk." in text
    given = ["--roast", "dark", "--num_cups", "3", "--grams", "8g", "--milk", "--sugar", "brown"]
    built = CliRunner().invoke(command(Breakfast), given).output
    assert built.strip() == repr(
        Breakfast(coffee=Coffee(roast=Roast.DARK, cups=3, milk=True, sugar="brown", grams=8.0))
    )


def test_keys_of_the_configuration_derive_from_the_fields(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"roast": "dark", "c": 2, "honey": False}))
    read = read_configuration(file, Breakfast)
    assert read == Layer(values={"roast": Roast.DARK, "cup_count": 2}, location=str(file))
    for wrong, said in (
        ({"roast": "drak"}, "did you mean 'dark'"),
        ({"c": 0}, "give an integer >= 1"),
        ({"cup_count": 2}, "unknown key 'cup_count'"),
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=said):
            read_configuration(file, Breakfast)


def test_flags_go_before_the_configuration_before_defaults() -> None:
    configured = Layer(values={"roast": Roast.DARK, "cup_count": 2}, location="c.json")
    values = joined([Layer(values={"cup_count": 5}), configured], options_in(Breakfast))
    assert build(Breakfast, values) == Breakfast(coffee=Coffee(roast=Roast.DARK, cups=5))


def test_of_options_that_exclude_each_other_the_first_source_decides_all() -> None:
    layers = [Layer(values={"milk": True, "sugar": "brown"}), Layer(values={"honey": True})]
    check_effects(layers, options_in(Breakfast))
    assert joined(layers, options_in(Breakfast)) == {"milk": True, "sugar": "brown"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sugar": "brown"}, "c.json: sugar has no effect without milk; give milk"),
        ({"milk": True, "sugar": "x", "honey": True}, "c.json: honey has no effect with sugar"),
    ],
)
def test_what_has_no_effect_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_effects([Layer(values=values, location="c.json")], options_in(Breakfast))
    assert str(caught.value).startswith(said)


def test_names_flags_and_keys_of_a_prediction_are_its_own() -> None:
    known = options_in(PredictOptions)
    spelled = [name for each in known for name in (each.name, *each.aliases)]
    keys = [each.key for each in known if each.key]
    assert len(set(spelled)) == len(spelled)
    assert len(set(keys)) == len(keys)
    assert {key for key in keys if "." not in key} < set(configuration_form().__struct_fields__)
