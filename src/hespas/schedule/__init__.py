"""Schedules: the tasks of all devices, with dependencies, and the files that hold them.

`build.estimated_tasks` turns a region graph and its estimates into a `tasks.TaskGraph`, which
describes all devices of one program; a `tasks.Job` holds several graphs and which device follows
which. `roles` computes from a graph what a single device does. `chakra/` writes and reads jobs
as Chakra traces; `intervals` has unions and differences of time intervals.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "build": ("check_host_link", "estimated_tasks", "region_name", "regions_of_tasks"),
    "chakra.format": ("COMM_GROUP_FILE", "NodeType", "read_groups", "varint"),
    "chakra.nodes": ("EVERYONE", "ParsedNode"),
    "chakra.reader": ("distinct_files", "read_messages", "read_traces", "trace_files"),
    "chakra.window": ("ScannedTrace", "scan_trace", "stream_trace"),
    "chakra.writer": ("write_traces",),
    "intervals": ("Interval", "covered_ps", "exposed_parts", "union"),
    "roles": ("ALWAYS", "Roles", "find_roles", "own_tasks"),
    "tasks": (
        "CollectiveTask",
        "CommunicationKind",
        "ComputeTask",
        "EmptyTask",
        "GroupTable",
        "Job",
        "MemoryTask",
        "ReceiveTask",
        "SendTask",
        "Task",
        "TaskGraph",
        "as_job",
        "devices_text",
        "needs",
        "short_devices_text",
    ),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
