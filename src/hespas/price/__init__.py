"""Estimate durations from regions and a device.

The input is the regions of a program (`split`), their work (`work`) and a device (`hardware`); the
output is an `estimate.Estimate` for each region, and a `graph.GraphEstimate` for all of them.

* `kernel`: what a device runs for an operation, classified once. `estimate`: the values.
* `driver`: the protocols of methods, and the walks over loops, branches, calls and launches.
* `graph`: every region of a graph, each distinct one once, at the clock that the device sustains;
  `cache`: where estimates are stored.
* Methods price single operations: `roofline`, `measured` (`tables` of kernels, for products in
  `gemm` and for `attention`), `ptx` (kernels as the compiler wrote them), `tpu`, `systolic`.
* `methods`: the registry, which makes an estimator by the name of its method.
"""
