"""How much work an operation is: FLOPs by type, transcendental functions, bytes moved.

In come operations, out come `work.Work` values, in the shape of the computation
(`structure`: `Leaf`, `Loop`, `Branch`). No hardware and no seconds: methods of estimation price
what is counted here. `expand.expand` opens operations; `rules` holds a small function for each
kind of operation; `gemm`, `convolution` and `attention` describe the products that any operation
runs, fusions and library calls included, from the libraries' `library_config`; `mosaic` counts
what kernels for TPUs do that their authors wrote.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "attention": ("Attention", "attentions"),
    "convolution": ("Convolution", "Direction", "convolutions"),
    "expand": ("expand",),
    "gemm": ("Gemm", "GemmWriter", "gemms"),
    "grouped": ("GroupedGemm", "TILE_ROWS", "grouped_gemms"),
    "mosaic.kernel": ("KernelLoad", "kernel_load", "multiplied"),
    "mosaic.tally": ("KernelProduct", "VectorUse"),
    "mosaic.vectors": ("Unit", "element_bits"),
    "rules.custom_call": (
        "CustomCallCost",
        "MOSAIC",
        "OperandTraffic",
        "StatedWork",
        "custom_call",
        "is_triton",
    ),
    "rules.elementwise": (),
    "rules.fusion": ("only_moves", "operations_of", "written_elements"),
    "rules.host": ("HostTraffic", "host_traffic", "is_on_host"),
    "rules.sizes": ("operand", "result"),
    "sorts": (
        "CUB_SORTS",
        "is_for_library",
        "is_plain",
        "launches_of",
        "shared_accesses",
        "sort_launches",
    ),
    "structure": ("Branch", "Cost", "Leaf", "Loop", "total"),
    "work": ("Work", "ZERO", "flop_counts"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
