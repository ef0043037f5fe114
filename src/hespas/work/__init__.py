"""How much work an operation is: FLOPs by type, transcendental functions, bytes moved.

`expand.expand` opens operations into `Leaf`, `Loop` and `Branch` values, whose
`hespas.program.work.Work` the methods of estimation price: there is no hardware here. Records in
`hespas.program.operations` count the work of each kind; `fusion` and `custom_call` count what
several operations, libraries and transfers to the host do; `gemm`, `convolution` and `attention`
describe the products that any operation runs, fusions and library calls included, from the
libraries' `library_config`; `mosaic` and `triton` count what kernels do that authors wrote.
"""
