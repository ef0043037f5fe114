from __future__ import annotations

import pytest

from hespas.errors import ProgramError, UnsupportedError
from hespas.xla.mlir.kernels import read_kernel_type, read_mosaic


@pytest.mark.parametrize("body", [b"", b"MLIR", b"ML\xefRnothing"])
def test_what_is_no_kernel_is_refused(body: bytes) -> None:
    with pytest.raises(ProgramError, match="its kernel"):
        read_mosaic(body)


def test_types_of_memory_and_registers() -> None:
    semaphores = read_kernel_type("memref<2x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>")
    assert (semaphores.element, semaphores.shape) == ("!tpu.dma_semaphore", (2,))
    assert read_kernel_type("memref<8x128xbf16>").space == "vmem"
    with pytest.raises(UnsupportedError, match="dynamic shape"):
        read_kernel_type("memref<?x128xf32, #tpu.memory_space<any>>")
