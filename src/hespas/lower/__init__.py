"""Model what XLA's GPU pipeline makes of a program, for nodes that no compiler serves.

In goes a `Program` as exported, out comes one whose operations are kernels in the order in which
they start, as from a compiler, but marked as modelled. `fused.fused` is the whole of it, after
`expand.expanded`, which opens operations that GPUs have no kernel for (`random_bits`). In turn:
`simplify` drops what changes nothing, `dots` merges small products and `padded_dots` pads uneven
ones, `assign` gives values layouts (`layouts`, as their users want them: `wishes`) and cuts long
reductions (`reductions`, `contiguous`), `loop_layouts` copies before loops what they read in
another layout, `group` decides which operations become one kernel, with what products take in
(`epilogues`), and `merge` which kernels one more, `build` writes them as fusions, `equal_kernels`
makes equal ones together, and `collectives` combines collectives and lets other work run beside
them, where memory is not short (`short_memory`); `summed_gradients` turns gradients before devices
sum them, and makes their norm late; `early_zeros` makes what the last micro-batch starts from
before the others. `cudnn` and `convolution_epilogues` have
convolutions call the library. For TPUs, `narrow_carried` hands loops in fewer bits what
they convert, `top_k` makes calls of sorts, `dot_operands` computes inside of products what they
read, and `before_loops` lets what frees memory run early. `beside`
moves shared experts beside the all-to-alls of routed ones, in compiled programs too. `blocks` has
what they share.
"""
