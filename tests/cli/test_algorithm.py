from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

Call = Callable[..., CompletedProcess[str]]


def test_an_algorithm_goes_from_a_name_to_xml_to_graphs_and_back(call: Call) -> None:
    made = call("hespas", "algorithm", "ring", "--ranks", "4", "--xml", "ring.xml")
    read = call("hespas", "algorithm", "ring.xml", "--ranks", "4", "--chakra", "graphs",
                "--size", "4KiB")  # fmt: skip
    graphs = call("hespas", "algorithm", "graphs/ring_allreduce_4", "--json")

    assert "ring_allreduce_4 computes allreduce: verified" in made.stdout
    assert "0 -> 1: 6,144 bytes" in read.stdout
    assert sorted(path.name for path in Path("graphs").iterdir()) == [
        f"ring_allreduce_4.{rank}.et" for rank in range(4)
    ]
    found = json.loads(graphs.stdout)
    assert found["is_verified"]
    assert found["links"][0] == [0, 1, 6, 6 * 2**18]


def test_what_is_wrong_is_an_error_of_one_line(call: Call) -> None:
    call("hespas", "algorithm", "ring", "--ranks", "4", "--xml", "ring.xml")
    text = Path("ring.xml").read_text()
    Path("wrong.xml").write_text(text.replace('type="rrc"', 'type="r"', 1))

    for arguments, message in (
        (("wrong.xml",), "wrong.xml: ring_allreduce_4: rank 0's output chunk 3 lacks"),
        (("ring.xml", "--ranks", "8"), "is for 4 ranks, not 8"),
        (("ring.xml", "--collective", "all-gather"), "does allreduce, not allgather"),
        (("absent.xml",), "cannot be read"),
        (
            ("absent",),
            "there is no algorithm 'absent', and no absent.0.et; known: bidirectional-ring, ",
        ),
        (("rign", "--ranks", "4"), "there is no algorithm 'rign', and no rign.0.et; did you mean"),
        (("dir/graph",), "dir: there is no graph.0.et"),
        (("ring",), "give --ranks"),
        (("in-switch", "--ranks", "4", "--collective", "all-to-all"), "there is no in-switch algo"),
        (("ring.xml", "--size", "0"), "not a size"),
        (("ring.xml", "--size", "2", "--chakra", "out"), "2 bytes cannot be cut into 4 chunks"),
    ):
        done = call("hespas", "algorithm", *arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
