from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hespas.collectives import families
from hespas.collectives.lowering import program
from hespas.collectives.registry import ALGORITHMS, algorithms_in
from hespas.collectives.schedule import Collective
from hespas.collectives.verify import verify

HYPERCUBE = '''
"""All-gather by recursive doubling from the farthest, described by someone else."""

from hespas.collectives.patterns import Form, Pattern
from hespas.collectives.schedule import Collective, CollectiveAlgorithm, Rounds, cut_evenly


def all_gather(members):
    rounds = []
    for bit in [1 << level for level in range(members.bit_length() - 1)]:
        def parts(message, bit=bit):
            first = message.source & ~(bit - 1)
            return range(first, first + bit)

        rounds.append(Rounds(pattern=Pattern(Form.EXCHANGE, bit), parts=parts, size_parts=bit))
    return cut_evenly("hypercube", Collective.ALL_GATHER, members, tuple(rounds))


ALGORITHM = CollectiveAlgorithm(
    name="hypercube", schedules={Collective.ALL_GATHER: all_gather}, needs_power_of_two=True
)
'''


def test_a_file_of_the_folder_is_an_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hypercube.py").write_text(dedent(HYPERCUBE))
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])

    algorithms = algorithms_in(families)

    assert list(algorithms) == [*ALGORITHMS, "hypercube"]
    schedule = algorithms["hypercube"].schedule(Collective.ALL_GATHER, 8)
    assert [schedule.message_bytes(rounds, 100) for rounds in schedule.rounds] == [100, 200, 400]
    links = verify(program(schedule)).chunks_by_link()
    assert (links[0, 1], links[0, 2], links[0, 4]) == (1, 2, 4)


def test_a_file_is_named_after_its_algorithm() -> None:
    folder = Path(families.__path__[0])
    files = {path.stem.replace("_", "-") for path in folder.glob("[!_]*.py")}

    assert files == set(ALGORITHMS)
