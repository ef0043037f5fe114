from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ProgramError
from hespas.xla.hlo.forms import is_hlo_proto, is_hlo_text
from hespas.xla.hlo.module import read_hlo_module
from hespas.xla.hlo.schema import message_class
from hlo_programs import module

TEXT = module("  p = f32[8] parameter(0)\n  ROOT r = f32[8] tanh(p)")


def _message() -> Any:
    return read_hlo_module(TEXT.encode(), name="a.hlo").message


def _opcodes(message: Any) -> list[str]:
    (computation,) = message.computations
    return [instruction.opcode for instruction in computation.instructions]


def test_both_protos_are_reported_apart() -> None:
    message = _message()
    alone = message.SerializeToString()
    wrapped = message_class("xla.HloProto")(hlo_module=message).SerializeToString()
    for source in (alone, wrapped):
        assert is_hlo_proto(source)
        assert _opcodes(read_hlo_module(source, name="a.pb").message) == ["parameter", "tanh"]


def test_stablehlo_that_begins_with_an_empty_line_is_no_proto() -> None:
    assert not is_hlo_proto(b"\nmodule {\n}\n")


def test_comments_may_stand_before_the_module() -> None:
    assert is_hlo_text(b"// dumped\n/* by XLA */ HloModule step\n")


@pytest.mark.parametrize(
    ("header", "counts"),
    [
        ("is_scheduled=true", (None, None)),
        ("replica_count=4", (4, None)),
        ("is_scheduled=true, num_partitions=8", (None, 8)),
    ],
)
def test_device_counts_stand_in_the_header(
    header: str, counts: tuple[int | None, int | None]
) -> None:
    entry = "  p = f32[8] parameter(0)\n  ROOT r = f32[8] tanh(p)"
    read = read_hlo_module(module(entry, header=header).encode(), name="a.hlo")
    assert (read.replicas, read.partitions) == counts


def test_device_counts_of_a_proto_stand_in_its_assignment() -> None:
    message = _message()
    message.device_assignment.replica_count = 2
    message.device_assignment.computation_count = 4
    read = read_hlo_module(message.SerializeToString(), name="a.pb")
    assert (read.replicas, read.partitions) == (2, 4)


def test_an_error_in_text_names_its_line() -> None:
    with pytest.raises(ProgramError, match=r"a\.hlo:5:\d+: .*Unknown opcode: tanhh"):
        read_hlo_module(TEXT.replace("tanh", "tanhh").encode(), name="a.hlo")


def test_a_module_without_computations_is_an_error() -> None:
    with pytest.raises(ProgramError, match="no ENTRY"):
        read_hlo_module(b"HloModule a\n", name="a.hlo")


def test_a_truncated_proto_is_an_error() -> None:
    source = _message().SerializeToString()
    with pytest.raises(ProgramError, match="or it is damaged"):
        read_hlo_module(source[: len(source) // 2], name="a.pb")


def test_text_that_is_not_utf8_is_an_error() -> None:
    with pytest.raises(ProgramError, match="not UTF-8"):
        read_hlo_module(b"HloModule a\xff\n", name="a.hlo")


@pytest.mark.parametrize(
    "wrong",
    [
        "  p = f32[8] parameter(1)",
        "  p = f32[8]{0:T(-1)} parameter(0)",
        "  p = f32[8] dot(s32[], f32[8])",
        "  p = f32[8] tuple()",
    ],
)
def test_what_ends_the_parser_is_an_error(wrong: str) -> None:
    with pytest.raises(ProgramError, match=r"a\.hlo: cannot be parsed: XLA's parser of HLO fails"):
        read_hlo_module(module(f"{wrong}\n  ROOT r = f32[8] tanh(p)").encode(), name="a.hlo")
    assert read_hlo_module(TEXT.encode(), name="a.hlo").message.computations
