"""Count the work of operations.

Work is FLOPs by type, transcendental functions, and bytes moved. `expand.expand` opens operations
into `Leaf`, `Loop` and `Branch` values, whose `hespas.program.work.Work` the estimation methods
price; nothing in this package depends on hardware. Records in `hespas.program.operations` count the
work of each kind; `fusion` and `custom_call` count fusions, library calls and transfers to the
host; `gemm`, `convolution` and `attention` describe the products that an operation runs, fusions
and library calls included, from the libraries' `library_config`; `mosaic` and `triton` count
authors' kernels.
"""
