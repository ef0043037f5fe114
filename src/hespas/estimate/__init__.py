"""From regions and a device to durations.

In come the regions of a program (`split`), their work (`cost`) and a device (`hardware`); out
comes an `estimate.Estimate` for each region, and a `graph.GraphEstimate` for all of them.

* `estimate`: the value; estimates add, and multiply by a count. `bound`: what decides a time.
* `driver`: the protocols of methods, and the one walk over loops, branches, calls and launches.
  `sequence` walks the same way and keeps the order, for timelines.
* `graph`: every region of a graph, each distinct one once; `cache`: where estimates are stored.
* Methods price single operations: `roofline`, `tables` (measured kernels), `ptx` (kernels as the
  compiler wrote them), `tpu` (cycles of a TPU's compiler; `tpu_sorts`: what has none),
  `systolic` (arrays in closed form).
* `clocks`: the clock that a device sustains under a computation, by the power that it draws.
* `rates`: a device whose memory, arithmetic or launches are faster, for asking what they cost.
* `methods`: the registry, which makes an estimator by the name of its method.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "bound": ("UNDIVIDED", "Bound", "larger_of"),
    "cache": ("DiskStore", "MemoryStore", "Store", "decode_estimate", "encode_estimate"),
    "clocks": ("Clocked", "Clocks", "PowerOptions", "at_sustained_clock", "draw_of", "no_power"),
    "driver": (
        "Estimator",
        "OperationMethod",
        "Price",
        "estimate_costs",
        "estimate_region",
        "is_kernel",
    ),
    "estimate": ("Estimate", "OpEstimate", "TypeTotals"),
    "graph": (
        "GraphEstimate",
        "ModuleEstimate",
        "Progress",
        "cache_keys",
        "computation_assumptions",
        "estimate_graph",
        "estimator_assumptions",
    ),
    "kept": ("KeptStore",),
    "methods": (
        "DEFAULT",
        "DeviceUse",
        "EstimatorSpec",
        "METHODS",
        "Method",
        "default_method",
        "default_text",
        "method_named",
    ),
    "ptx.kernels": ("AnalysisCache", "KernelPricer", "Reading", "kernel_pricer"),
    "ptx.method": ("KernelEstimator",),
    "ptx.terms": ("reasons",),
    "rates": ("Rates", "Scalable"),
    "roofline": ("Roofline", "RooflineOptions", "same_work"),
    "sequence": ("Priced", "Rounds", "Step", "priced_steps"),
    "systolic.array": ("Dataflow", "Product", "SystolicArray"),
    "systolic.method": (
        "SimulatorHardware",
        "Systolic",
        "SystolicHardware",
        "array_hardware",
        "array_of",
        "array_parameters",
        "array_text",
        "with_timer",
    ),
    "tables.files": ("part_names",),
    "tables.gemm": ("GemmModel", "Product", "gemm_model"),
    "tables.method": ("Measured", "make"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
