"""Studies: many predictions of one kind, to find the best configuration or to see how one scales.

In comes a `study.Study`, read from YAML: a list is searched, a scalar is pinned. Out comes a table
of candidates, each predicted, bounded, refused or failed with the reason.

* `study`, `keys`, `expression`, `goal`, `prices`: what is searched and looked for; `schema` of it.
* `space`: the candidates. `entry`: what is known of one before it is predicted; `bounds`.
* `run`: bounds, screening, compilation, in an order that the study alone decides.
* `sampling`: what of a large study is predicted.
* `store`: the results, in one SQLite file; `kept`: those of other studies too.
* `messages`: tasks and outcomes. `evaluate`: one task.
* `executor`: where tasks run; `local` processes, whose other end is `worker`, or `dask_cluster`.
* `caches`: the programs that another machine made for a task.
* `rows`, `text`, `exports`, `ranking`: the table. `studied`: all of it from outside.

Only this folder knows of several predictions; each is `hespas.prediction.composition.predict`.
"""
