"""The groups under which options stand in help texts and reference pages."""

from __future__ import annotations

from enum import Enum


class Group(Enum):
    """The headings of help texts, in the order in which they are shown.

    ``MAIN`` are those that most users need. A dataclass of options names its group as ``GROUP``; a
    field that stands elsewhere declares its own (`hespas.base.fields.Option`).

    >>> [group.value for group in Group][:2]
    ['Options', 'Workload']
    """

    MAIN = "Options"
    WORKLOAD = "Workload"
    MODEL = "Options of models"
    PIPELINE = "Pipelines"
    MAXTEXT = "Options of MaxText"
    COMPILATION = "Compilation"
    DIVISION = "Dividing the program"
    ESTIMATION = "Estimation"
    NETWORK = "Cluster and network"
    ENGINE = "Another simulator"
    LONG_RUN = "A long run"
    CACHES = "Caches and limits"
    OUTPUT = "Output"
    LOGGING = "Logging and help"
