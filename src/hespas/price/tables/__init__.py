"""``method: measured``: what a kernel takes by tables of published timings.

In comes an operation, out comes its time: matrix products, convolutions and attention from tables
that are read (`files`), completed and interpolated (`grid`) and scaled to other types and devices
(`gemm`, `convolution`, `attention`); everything else by the bytes it moves, or by its PTX.
`method.make` puts them together.
"""
