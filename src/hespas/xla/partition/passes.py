"""Select CPU compiler passes that partition as XLA's GPU compiler does.

The GPU compiler simplifies a program before it partitions it, the CPU compiler afterwards. So a
program goes through the CPU compiler twice: first as a program of a single partition, whose
shardings are kept, without the passes that do not simplify; and then with only those that
partition.

The names are those of jaxlib 0.10.2, which hespas pins.
"""

from __future__ import annotations

_CAPTURE = "apply-xla-transforms"

PARTITION_ONLY = (
    "call-inliner",
    "conditional-canonicalizer",
    "cse",
    "dce",
    "flatten-call-graph",
    "sharding-propagation",
    "shardy-xla",
    "spmd-cleanup",
    "spmd-partitioning",
    "tuple-simplifier",
    "zero_sized_hlo_elimination",
    _CAPTURE,
)
"""Passes that partition: inlining, propagation, partitioning, and the cleanup after it."""

SIMPLIFY_WITHOUT = (
    "after layout assignment",
    "all-reduce-promotion",
    "all_to_all_decomposer",
    "associative-scan-rewriter",
    "batch-dot-simplification",
    "batched_gather_scatter_normalizer",
    "batchnorm_expander",
    "bitcast_dtypes_expander",
    "broadcast_canonicalizer",
    "change-op-data-type",
    "cholesky_expander",
    "comparison-expander",
    "conditional-to-select",
    "control-dep-rewriter",
    "convolution-canonicalization",
    "convolution-group-converter",
    "copy-insertion",
    "cpu-all-reduce-combiner",
    "cpu-parallel-task-assigner",
    "cse",
    "cse_barrier_expander",
    "dot-library-rewriter",
    "dot_decomposer",
    "dynamic-dimension-simplifier",
    "dynamic-index-splitter",
    "dynamic_padder",
    "eigh_expander",
    "float-normalization-bf16",
    "float-normalization-f4e2m1fn",
    "float-normalization-f8e3m4",
    "float-normalization-f8e4m3",
    "float-normalization-f8e4m3b11fnuz",
    "float-normalization-f8e4m3fn",
    "float-normalization-f8e4m3fnuz",
    "float-normalization-f8e5m2",
    "float-normalization-f8e5m2fnuz",
    "float-normalization-f8e8m0fnu",
    "float-normalization-s4",
    "float-normalization-u4",
    "fusion",
    "fusion-wrapper",
    "gather_expander",
    "gather_simplifier",
    "gemv-rewriter",
    "layout-assignment",
    "literal-canonicalizer",
    "logistic-expander",
    "map-inline",
    "operand_upcaster",
    "optimize_input_output_buffer_alias",
    "post_scatter_expansion_simplification",
    "propagate-call-metadata",
    "qr_expander",
    "reduce-decomposer",
    "reduce-window-resizer",
    "reduce-window-rewriter",
    "reshape-decomposer",
    "result_caster",
    "rng-bit-generator-expander",
    "rng-expander",
    "scan_expander",
    "scatter_expander",
    "scatter_simplifier",
    "select_and_scatter_expander",
    "shape-canonicalizer",
    "sharding-remover",
    "simplification after layout assignment",
    "small-while-loop-hoisting",
    "stochastic_convert_decomposer",
    "sub-byte-size-setter",
    "topk-decomposer",
    "topk-rewriter",
    "transpose-folding",
    "tree_reduction_rewriter",
    "triangular_solve_expander",
    "while-loop-invariant-code-motion",
    "while-loop-trip-count-annotator",
)
"""All passes of the CPU compiler except inlining and algebraic simplification.

`reshape-mover`, `algsimp`, `constant_folding`, `tuple-simplifier`, `simplify-while-loops` and their
like are left on: the GPU compiler's ``spmd-simplify`` pipeline has them too.
"""
