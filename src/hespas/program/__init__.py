"""The intermediate representation that all stages read: data only.

`program` has the values, operations, blocks, functions and the `Program` that holds them, `attrs`
and `types` what operations and values carry, `groups` the devices of a collective, `scopes` the
framework's name stacks, `kernels` a compiler's kernels and `mosaic` those that authors write for
TPUs. `devices` settles how many devices a
program runs on, `rewrite` copies operations and opens calls, `text` prints MLIR, and `canonical`
recognises equal computations. `whole` is what is known from
before a program was divided. Nothing here knows where a program came from or what it costs.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "attrs": (
        "Attrs",
        "BitcastAttrs",
        "CallAttrs",
        "CaseAttrs",
        "CollectiveAttrs",
        "CompareAttrs",
        "ConstantAttrs",
        "ConvolutionAttrs",
        "CustomCallAttrs",
        "DimensionAttrs",
        "DimensionsAttrs",
        "DotAttrs",
        "EinsumAttrs",
        "FftAttrs",
        "FusionAttrs",
        "GatherAttrs",
        "InPlace",
        "NO_ATTRS",
        "PermuteAttrs",
        "SliceAttrs",
        "Table",
        "WhileAttrs",
        "WindowAttrs",
        "dot_algorithm_text",
    ),
    "canonical": ("fingerprint", "structure_key"),
    "devices": ("communication_ops", "device_group_table", "device_pairs", "with_device_count"),
    "experts": ("ExpertLoad", "UNIFORM"),
    "grouped": ("GroupedProduct", "grouped_product", "steps_of_tiles"),
    "groups": ("FoldedGroups", "GroupMode", "ListedGroups", "ReplicaGroups", "groups_along"),
    "kernels": ("CompiledKernels", "Extent", "KernelLaunch", "decode_kernels", "encode_kernels"),
    "mosaic": ("KernelBlock", "KernelOp", "KernelType", "MosaicKernel", "Window", "kernel_ops"),
    "program": (
        "Alias",
        "Block",
        "Fidelity",
        "Function",
        "Op",
        "Program",
        "Value",
        "all_ops",
        "called_functions",
        "instructions_digest",
        "is_communication_op",
        "nested_ops",
        "values_read",
        "with_kernels",
    ),
    "rewrite": ("Renaming", "copied_op", "fresh", "with_calls_opened", "without_identities"),
    "scopes": (
        "NO_NAME",
        "Named",
        "Phase",
        "joined_scope",
        "joined_scopes",
        "merged_layers",
        "place_text",
        "read_scope",
    ),
    "text": ("TypeText", "function_text", "module_text", "private_function_text", "quoted_symbol"),
    "triton": ("TritonKernel", "TritonOp", "TritonType"),
    "types": (
        "AsyncType",
        "DEVICE_MEMORY",
        "ELEMENT_TYPES",
        "ElementType",
        "HOST_MEMORY",
        "NumberKind",
        "TensorType",
        "TokenType",
        "TupleType",
        "Type",
        "allocated_bytes",
        "element_type",
        "plain_text",
        "size_bytes",
        "tensors",
    ),
    "whole": ("Whole",),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
