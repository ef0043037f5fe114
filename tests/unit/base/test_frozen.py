"""Frozen values are those of the standard library's dataclasses, made sooner."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, cast

import pytest

from hespas.base.frozen import frozen


def made(decorator: Callable[[type], type]) -> Any:
    class Value:
        number: int
        name: str = "a"
        items: tuple[int, ...] = ()
        found: dict[str, int] = field(default_factory=dict[str, int])
        hidden: int = field(default=3, repr=False, compare=False)
        same: ClassVar[int] = 7

        @property
        def double(self) -> int:
            return 2 * self.number

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError(self.number)

    return decorator(Value)


@frozen
class Point:
    """A point."""

    x: int
    y: int = 0


@frozen
class Place(Point):
    """A point with a name."""

    name: str


OWN = made(frozen)
STANDARD = made(cast("Any", dataclass(frozen=True, slots=True, kw_only=True)))


@pytest.mark.parametrize("cls", [OWN, STANDARD])
def test_a_value_is_made_shown_compared_and_replaced(cls: Any) -> None:
    one, other = cls(number=2), cls(number=2, hidden=5)
    assert repr(one) == "made.<locals>.Value(number=2, name='a', items=(), found={})"
    assert one == other != cls(number=3)
    assert one != 2
    assert (one.double, cls.same, one.hidden, other.hidden) == (4, 7, 3, 5)
    assert replace(one, name="b") == cls(number=2, name="b")
    assert asdict(one) == {"number": 2, "name": "a", "items": (), "found": {}, "hidden": 3}
    assert [each.name for each in fields(one)] == ["number", "name", "items", "found", "hidden"]
    assert one.found is not other.found
    assert not hasattr(one, "__dict__")
    with pytest.raises(ValueError, match="-1"):
        cls(number=-1)


class Three:
    """Three numbers, and one that is made."""

    x: int
    y: int
    z: int
    made: int = field(default=4, init=False)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"x": 1},
        {"x": 1, "y": 2},
        {"x": 1, "y": 2, "w": 3},
        {"x": 1, "y": 2, "z": 3, "w": 4},
        {"x": 1, "y": 2, "z": 3, "made": 4},
        {"y": 2, "made": 4},
    ],
)
def test_wrong_arguments_have_the_errors_of_dataclasses(given: dict[str, int]) -> None:
    said: list[str] = []
    for decorator in (frozen, cast("Any", dataclass(frozen=True, slots=True, kw_only=True))):
        cls: Any = decorator(type("Three", (), dict(vars(Three))))
        assert cls(x=1, y=2, z=3).made == 4
        with pytest.raises(TypeError) as caught:
            cls(**given)
        said.append(str(caught.value))
        with pytest.raises(TypeError, match=r"__init__\(\) takes 1 positional argument but 2 were"):
            cls(1)
    assert said[0] == said[1]


@pytest.mark.parametrize("cls", [OWN, STANDARD])
def test_a_value_stays_as_it_is(cls: Any) -> None:
    one = cls(number=2)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'number'"):
        one.number = 3
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'number'"):
        del one.number
    assert one.number == 2


def test_values_are_hashed_copied_and_pickled() -> None:
    point = Point(x=1)
    assert hash(point) == hash((1, 0))
    assert {point, Point(x=1, y=0)} == {point}
    assert copy.copy(point) == pickle.loads(pickle.dumps(point)) == point  # noqa: S301 - own bytes


def test_a_class_inherits_fields() -> None:
    place = Place(x=1, name="a")
    assert repr(place) == "Place(x=1, y=0, name='a')"
    assert place != Point(x=1)
    assert isinstance(place, Point)


def test_a_method_of_the_class_stays() -> None:
    @frozen
    class Own:  # noqa: PLW1641 - `frozen` adds one
        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __repr__(self) -> str:
            return "own"

    assert Own(x=1) == Own(x=2)
    assert repr(Own(x=1)) == "own"
    assert hash(Own(x=1)) == hash((1,))
