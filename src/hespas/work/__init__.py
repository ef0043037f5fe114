"""How much work an operation is: FLOPs by type, transcendental functions, bytes moved.

In come operations, out come `hespas.program.work.Work` values, in the shape of the computation
(`structure`: `Leaf`, `Loop`, `Branch`). No hardware and no seconds: methods of estimation price
what is counted here. `expand.expand` opens operations, whose records in
`hespas.program.operations` count the work of each kind; `fusion`, `custom_call` and `host` count
what several operations, libraries and transfers do; `gemm`, `convolution` and `attention` describe
the products that any operation runs, fusions and library calls included, from the libraries'
`library_config`; `mosaic` counts what kernels for TPUs do that their authors wrote.
"""
