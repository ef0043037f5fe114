"""The tasks of a prediction with other durations, each row of computations as one task.

Computations that are priced again change durations, and nothing of what waits for what: the graph
of a prediction is made, and its rows are joined, once for all changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hespas.prediction.explain.pricing import Prices
from hespas.prediction.result import Prediction
from hespas.simulate.rounds import Chained, chained
from hespas.tasks.build import regions_of_tasks
from hespas.tasks.graph import ComputeTask, Task, TaskGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a prediction's computations, and the region of each computation by its task."""

    chains: Chained
    regions: dict[int, int]

    def at(self, prices: Prices) -> TaskGraph:
        """Return the tasks where each region takes what ``prices`` has for it."""
        distinct = {id(each): each for each in prices if each is not None}
        duration_ps = {number: each.duration_ps for number, each in distinct.items()}
        of_task = {task: duration_ps[id(prices[at])] for task, at in self.regions.items()}

        def repriced(task: Task) -> Task:
            if not isinstance(task, ComputeTask):
                return task
            row = self.chains.members.get(task.id, (task,))
            return replace(task, duration_ps=sum([of_task[each.id] for each in row]))

        tasks = tuple([repriced(task) for task in self.chains.graph.tasks])
        return replace(self.chains.graph, tasks=tasks)


def rows_of(prediction: Prediction) -> Rows:
    """Return the rows of a scheduled program's computations."""
    found = regions_of_tasks(prediction.graph, prediction.tasks)
    tasks = {task.id for task in prediction.tasks.tasks if isinstance(task, ComputeTask)}
    return Rows(
        chains=chained(prediction.tasks),
        regions={task: region.id for task, region in found.items() if task in tasks},
    )
