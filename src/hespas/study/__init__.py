"""Studies: many predictions of one kind, to find the best configuration or to see how one scales.

In comes a `study.Study`, read from YAML: a list is searched, a scalar is pinned. Out comes a table
of candidates, each predicted, bounded, refused or failed with the reason.

* `study`, `keys`, `goal`: what is searched and looked for, its constraints and prices.
* `space`: the candidates, and samples of them. `entry`: what is known of one before it is
  predicted, and its bounds.
* `run`: bounds, screening, compilation, in an order that the study alone decides.
* `store`: the results, in one SQLite file, those of other studies, and files of caches.
* `executor`: tasks, outcomes, and processes that run them; `dask_cluster`: those of a cluster.
  `evaluate`: one task.
* `rows`: the table, as text and as files.
"""
