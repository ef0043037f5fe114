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

Only this folder knows of several predictions; each is `hespas.pipeline.predict`.
"""

from __future__ import annotations

PUBLIC: dict[str, tuple[str, ...]] = {
    "executor": ("ExecutorOptions", "Place"),
    "exports": ("flat", "table_json", "write_table"),
    "goal": ("METRICS", "Direction", "Goal", "fronts"),
    "keys": ("CLUSTER", "MESH", "Scalar", "WORKLOAD", "known_keys", "scalar_text"),
    "ranking": ("ranking", "ranking_text"),
    "rows": ("Row", "Status"),
    "schema": ("study_schema",),
    "space": ("system_named",),
    "store": ("DATABASE", "is_running", "reading"),
    "studied": ("Studied", "row_named", "studied", "study_in", "table_of"),
    "study": ("AUTO", "Study", "StudyFidelity", "read_study", "study_of"),
    "text": (
        "candidate_text",
        "compared_text",
        "counts_text",
        "figure_text",
        "pinned_text",
        "table_text",
    ),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
