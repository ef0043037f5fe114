import pytest

import blocks
from blocks import BLOCKS, Row, predicted_us, table
from compilers import needs_gpu


@needs_gpu
@pytest.mark.parametrize("gpu", blocks.NODES)
@pytest.mark.parametrize("name", ["one-hot of tokens", "attention core, 9 heads"])
def test_a_block_takes_what_was_published(name: str, gpu: str) -> None:
    (block,) = [each for each in BLOCKS if each.name == name]
    predicted = predicted_us(block, blocks.NODES[gpu])
    row = Row(block=name, gpu=gpu, published_us=block.published_us[gpu], predicted_us=predicted)
    assert abs(row.error) < 0.05


def test_the_table_holds_each_row_and_the_mean_of_errors() -> None:
    rows = [
        Row(block="a", gpu="A100", published_us=(100.0,), predicted_us=110.0),
        Row(block="b", gpu="H100", published_us=(90.0, 110.0), predicted_us=80.0),
    ]
    lines = table(rows).splitlines()
    assert lines[2] == "| a | A100 | 100 | 110.0 | +10.0 % |"
    assert lines[3] == "| b | H100 | 90 and 110 | 80.0 | -20.0 % |"
    assert lines[-1] == "Mean error, without signs: 15.0 %."
