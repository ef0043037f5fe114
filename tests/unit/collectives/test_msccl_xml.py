from __future__ import annotations

from pathlib import Path

import pytest

from hespas.collectives.msccl_xml import parse_program, read_program
from hespas.collectives.program import Buffer, Place, StepId, StepKind
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind

# The form in which MSCCL's own tools write an algorithm.
TEXT = """<!-- a comment -->
<algo name="swap" proto="LL" nchannels="1" nchunksperloop="4" ngpus="2" coll="allgather"
 inplace="0">
  <gpu id="1" i_chunks="2" o_chunks="4" s_chunks="1">
    <tb id="3" send="0" recv="0" chan="1">
      <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="o" dstoff="3"
       cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="1" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1"
       cnt="0" depid="4" deps="0" hasdep="0"/>
    </tb>
    <tb id="4" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0"
       cnt="1" depid="3" deps="0" hasdep="1"/>
    </tb>
  </gpu>
  <gpu id="0" i_chunks="2" o_chunks="4" s_chunks="0"/>
</algo>
"""


def test_every_attribute_is_read() -> None:
    algorithm = parse_program(TEXT)

    assert algorithm.name == "swap"
    assert algorithm.protocol == "LL"
    assert algorithm.collective is CollectiveKind.ALL_GATHER
    assert (algorithm.input_chunks, algorithm.output_chunks) == (2, 4)
    assert not algorithm.is_in_place
    empty, rank = algorithm.ranks
    assert empty.threadblocks == ()
    assert rank.scratch_chunks == 1
    first, second = rank.threadblocks
    assert (first.id, first.send_peer, first.receive_peer, first.channel) == (3, 0, 0, 1)
    assert (second.send_peer, second.receive_peer) == (None, None)
    send, nop = first.steps
    assert (send.kind, send.source) == (StepKind.SEND, Place(Buffer.INPUT, 1))
    assert (nop.kind, nop.after) == (StepKind.NOP, StepId(4, 0))
    (copy,) = second.steps
    assert (copy.target, copy.count) == (Place(Buffer.SCRATCH, 0), 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('coll="allgather"', 'coll="allmix"', "coll is 'allmix'; use one of allreduce"),
        ('coll="allgather"', "", "algo: <algo> lacks coll"),
        ('nchunksperloop="4"', 'nchunksperloop="3"', "nchunksperloop is 3 among 2 ranks"),
        ('nchunksperloop="4"', 'nchunksperloop="x"', "nchunksperloop is 'x', not an integer"),
        ('ngpus="2"', 'ngpus="3"', "ngpus is 3, and there are 2 <gpu>"),
        ('<gpu id="0"', '<gpu id="1"', "there is no <gpu> with id 0"),
        ('type="cpy"', 'type="copy"', "rank 1, threadblock 4, step 0: type is 'copy'"),
        ('dstbuf="s"', 'dstbuf="q"', "step 0: dstbuf is 'q'; use one of i, o, s"),
        ('srcoff="0"', 'srcoff="-2"', "srcoff is -2"),
        ('cnt="1" depid="3"', 'cnt="0" depid="3"', "threadblock 4, step 0: cnt is 0"),
        ('depid="3" deps="0"', 'depid="3" deps="-1"', "depid is 3 and deps is -1"),
        ('s="1" type="nop"', 's="2" type="nop"', "steps are not numbered from 0 on"),
        ('hasdep="1"/>\n      <step', 'hasdep="0"/>\n      <step', 'give that step hasdep="1"'),
        ("<tb", "<block", "malformed"),
        ("<algo", "<!DOCTYPE algo><algo", "declares a document type"),
        ("</algo>", "<tb/></algo>", "<algo> holds <tb>, where only <gpu> may be"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(AlgorithmError) as caught:
        parse_program(TEXT.replace(old, new, 1), location="file.xml")

    assert str(caught.value).startswith("file.xml")
    assert message in str(caught.value)


def test_a_step_waited_for_need_not_say_so_where_none_does() -> None:
    without = TEXT.replace(' hasdep="1"', "").replace(' hasdep="0"', "")

    assert parse_program(without) == parse_program(TEXT)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.xml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(AlgorithmError, match=r"a\.xml: the algorithm cannot be read"):
        read_program(path)
