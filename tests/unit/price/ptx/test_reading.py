import pytest

from hespas.errors import ProgramError
from hespas.price.ptx.reading import walk_middle, with_neighbour

from .conftest import COLUMNS, STREAM, analyse, launch


def test_a_stream_touches_each_sector_once() -> None:
    found = analyse(STREAM, launch("stream", blocks=1000, threads=128))
    assert (found.blocks, found.threads, found.warps) == (1000, 128, 4)
    assert found.load_sectors == found.fresh_sectors == found.store_sectors == 128 * 4 / 32
    assert found.l1_lines == 2 * 4
    assert found.slots.memory == 2 * 4
    assert not found.loop_runs
    assert {each.amplification for each in found.accesses} == {1.0}
    assert {(each.is_store, each.width_bytes, each.stride) for each in found.accesses} == {
        (False, 4, 4),
        (True, 4, 4),
    }


def test_scalar_stores_send_every_sector_as_often_as_it_has_parts() -> None:
    """32 threads x 4 elements x 2 bytes are 8 sectors; each of four stores touches all of them."""
    found = analyse(COLUMNS, launch("columns", blocks=32, threads=1024))
    rounds, warps, sectors = 4096 / 32, 32, 8
    assert found.loop_rounds == rounds
    assert found.load_sectors == rounds * warps * sectors
    assert found.store_sectors == 4 * rounds * warps * sectors
    assert found.loop_sectors == 2 * rounds * warps * sectors
    assert found.loop_sectors / found.loop_runs == sectors
    stores = [each for each in found.accesses if each.is_store]
    assert [each.amplification for each in stores] == [4.0] * 4
    assert [each.stride for each in stores] == [8] * 4


def test_what_a_block_loads_again_is_not_fresh() -> None:
    again = STREAM.replace(
        "neg.f32", "bra.uni $L2;\n$L2:\n ld.global.nc.b32 %r9, [%rd4];\n neg.f32"
    )
    found = analyse(again, launch("stream", blocks=8, threads=128))
    assert found.load_sectors == 2 * found.fresh_sectors


@pytest.mark.parametrize(("blocks", "threads"), [(0, 128), (4, 0)])
def test_a_launch_of_nothing_is_refused(blocks: int, threads: int) -> None:
    with pytest.raises(ProgramError, match="stream: the launch has"):
        analyse(STREAM, launch("stream", blocks=blocks, threads=threads))


def test_what_the_next_block_loads_again_stays_in_l1() -> None:
    """Each block reads the same 512 bytes of parameters, and 512 bytes of its own."""
    text = STREAM.replace(
        "neg.f32",
        "mul.wide.u32 %rd6, %r2, 4;\n add.s64 %rd7, %rd2, %rd6;\n"
        " ld.global.nc.b32 %r9, [%rd7+8388608];\n neg.f32",
    )
    one = launch("stream", blocks=1000, threads=128)
    found = analyse(text, one)
    assert found.fresh_sectors == 2 * 128 * 4 / 32
    assert with_neighbour(found, walk_middle(text, one), one).neighbour_sectors == 128 * 4 / 32
    alone = launch("stream", blocks=1, threads=128)
    walked = walk_middle(text, alone)
    assert with_neighbour(analyse(text, alone), walked, alone).neighbour_sectors == 0


def test_a_copy_to_shared_memory_loads_what_it_reads() -> None:
    text = """
    .visible .entry copy(.param .u64 from) .reqntid 128, 1, 1
    {
      ld.param.b64 %rd1, [from];
      mov.u32 %r1, %tid.x;
      mul.wide.u32 %rd2, %r1, 16;
      add.s64 %rd3, %rd1, %rd2;
      cp.async.cg.shared.global [ %r9 + 0 ], [ %rd3 + 0 ], 0x10, %r11;
      cp.async.commit_group;
      ret;
    }"""
    analysis = analyse(text, launch("copy", blocks=8, threads=128))
    assert analysis.load_sectors == 128 * 16 / 32
    assert analysis.store_sectors == 0
    assert [(each.is_store, each.width_bytes) for each in analysis.accesses] == [(False, 16)]
