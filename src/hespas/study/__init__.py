"""Studies: predict many candidates, and find the best.

The input is a `study.Study`, read from YAML: a list is searched, a scalar is pinned. The output is
a table of candidates, each predicted, bounded, refused or failed with the reason.

* `study`, `keys`, `goal`: the keys that are searched, the goal, constraints and prices.
* `space`: the candidates, and samples of them. `entry`: a candidate before its prediction, with its
  bounds.
* `run`: bounds, screening, compilation, in an order that the study alone decides. `search`: the
  study that finds the best mesh.
* `store`: the results, in one SQLite file, those of other studies, and files of caches.
* `executor`: tasks, outcomes, and processes that run them; `dask_cluster`: those of a cluster.
  `evaluate`: one task.
* `rows`: the table, as text and as files.
"""
