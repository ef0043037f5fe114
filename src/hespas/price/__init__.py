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
