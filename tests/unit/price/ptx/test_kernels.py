import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from compilers import JOB, RESULT
from hespas.compile.cache import CompiledCache
from hespas.errors import ProgramError
from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.price.ptx.kernels import analysis_key, kept_analysis, kernel_pricer
from hespas.price.ptx.reading import walk_middle, with_neighbour
from hespas.program.kernels import CompiledKernels, KernelLaunch
from hespas.work.expand import Leaf, expand
from programs import main_function

from .conftest import COLUMNS, STREAM, analyse, launch

COLUMNS_LAUNCH = launch("columns", blocks=32, threads=1024)
STREAM_LAUNCH = launch("stream", blocks=1000, threads=128)


def path_of(kept: Path, text: str, one: KernelLaunch) -> Path:
    return kept / f"{analysis_key(text, one)}.kernel"


def test_what_is_kept_is_what_is_read(tmp_path: Path) -> None:
    kept = tmp_path / "made" / "here"
    fresh = kept_analysis(kept, COLUMNS, COLUMNS_LAUNCH)
    assert fresh == analyse(COLUMNS, COLUMNS_LAUNCH)
    path = path_of(kept, COLUMNS, COLUMNS_LAUNCH)
    assert list(path.parent.iterdir()) == [path]
    assert kept_analysis(kept, COLUMNS, COLUMNS_LAUNCH) == fresh


def test_a_kernel_that_is_kept_is_not_walked(tmp_path: Path) -> None:
    columns = kept_analysis(tmp_path, COLUMNS, COLUMNS_LAUNCH)
    content = path_of(tmp_path, COLUMNS, COLUMNS_LAUNCH).read_bytes()
    path_of(tmp_path, STREAM, STREAM_LAUNCH).write_bytes(content)
    assert kept_analysis(tmp_path, STREAM, STREAM_LAUNCH) == columns


def test_neighbours_are_kept_beside_the_kernel_alone(tmp_path: Path) -> None:
    text = STREAM.replace("add.s64 %rd4, %rd1, %rd3", "mov.b64 %rd4, %rd1")
    alone = analyse(text, STREAM_LAUNCH)
    with_others = with_neighbour(alone, walk_middle(text, STREAM_LAUNCH), STREAM_LAUNCH)
    assert with_others != alone
    for _ in range(2):
        assert kept_analysis(tmp_path, text, STREAM_LAUNCH) == alone
        assert kept_analysis(tmp_path, text, STREAM_LAUNCH, neighbours=True) == with_others


def test_all_that_decides_an_analysis_is_in_its_key() -> None:
    launches = [
        STREAM_LAUNCH,
        replace(STREAM_LAUNCH, grid=(1, 1000, 1)),
        replace(STREAM_LAUNCH, block=(64, 2, 1)),
        replace(STREAM_LAUNCH, shared_memory_bytes=64),
        replace(STREAM_LAUNCH, integers=(8,)),
    ]
    keys = {analysis_key(text, one) for text in (STREAM, COLUMNS) for one in launches}
    assert len(keys | {analysis_key(STREAM, STREAM_LAUNCH, neighbours=True)}) == 11


def test_the_instruction_that_launches_it_is_not_in_its_key() -> None:
    other = replace(STREAM_LAUNCH, instruction="fusion.7")
    assert analysis_key(STREAM, STREAM_LAUNCH) == analysis_key(STREAM, other)


@pytest.mark.parametrize("cut", [0, 5, 40, 80])
def test_a_damaged_file_is_made_anew(tmp_path: Path, cut: int) -> None:
    found = kept_analysis(tmp_path, STREAM, STREAM_LAUNCH)
    path = path_of(tmp_path, STREAM, STREAM_LAUNCH)
    content = path.read_bytes()
    path.write_bytes(content[:cut])
    assert kept_analysis(tmp_path, STREAM, STREAM_LAUNCH) == found
    assert path.read_bytes() == content


def test_a_directory_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    kept = file / "below"
    assert kept_analysis(kept, STREAM, STREAM_LAUNCH) == analyse(STREAM, STREAM_LAUNCH)
    assert kept_analysis(None, STREAM, STREAM_LAUNCH) == analyse(STREAM, STREAM_LAUNCH)
    assert file.read_text() == "in the way"


def test_what_cannot_be_read_is_not_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ProgramError, match="has no PTX kernel"):
            kept_analysis(tmp_path, "nothing", STREAM_LAUNCH)
    assert not list(tmp_path.iterdir())


def test_the_cache_of_compiled_programs_makes_room_of_it(tmp_path: Path) -> None:
    kept_analysis(tmp_path, STREAM, STREAM_LAUNCH)
    path = path_of(tmp_path, STREAM, STREAM_LAUNCH)
    os.utime(path, (1, 1))
    CompiledCache(directory=tmp_path, limit_bytes=1).write(JOB, RESULT)
    assert not path.exists()


def test_an_instruction_of_several_launches_takes_what_all_of_them_take() -> None:
    """XLA's sorts launch a kernel for each stage that doesn't fit into shared memory."""
    device = load_device("H100_80GB")
    text = main_function(
        "%r = stablehlo.add %x, %x : tensor<65536xf32>\nreturn %r : tensor<65536xf32>",
        arguments="%x: tensor<65536xf32>",
        results="tensor<65536xf32>",
    )
    add = load_source(text.encode(), name="test.mlir").main.body.operations[0]
    (leaf,) = expand([replace(add, instruction="sort.1")])
    assert isinstance(leaf, Leaf)

    def time_s(*launches: KernelLaunch) -> float:
        named = tuple(replace(each, instruction="sort.1") for each in launches)
        kernels = CompiledKernels(launches=named, ptx={"stream": STREAM, "columns": COLUMNS})
        pricer = kernel_pricer(device, kernels)
        assert pricer is not None
        return pricer.price(leaf).time_s

    one, other = time_s(STREAM_LAUNCH), time_s(COLUMNS_LAUNCH)
    assert time_s(STREAM_LAUNCH, STREAM_LAUNCH, STREAM_LAUNCH) == pytest.approx(3 * one)
    assert max(3 * one, other) < time_s(*[STREAM_LAUNCH] * 3, COLUMNS_LAUNCH) <= 3 * one + other
