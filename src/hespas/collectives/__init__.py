"""Collective algorithms: described once, verified, written out, and read from files.

`hespas.collectives.registry.ALGORITHMS` has the common ones by name. Each gives, for a collective
and a number of members, a `hespas.collectives.schedule.Schedule`: rounds of messages, with who
sends which parts to whom, to be added or stored. The network models time schedules;
`hespas.collectives.schedule.schedule_text` prints them.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "chakra_graphs": ("COLLECTIVE_OF", "collective_graphs", "read_graphs", "write_graphs"),
    "chakra_verify": ("verify_graphs",),
    "families": (),
    "families.double_binary_tree": ("binary_tree_all_reduce",),
    "families.halving_doubling": (),
    "families.ring": ("chain",),
    "hierarchical": ("HIERARCHICAL", "phases"),
    "lowering": ("common_program",),
    "loops": ("loop_through",),
    "msccl_xml": ("program_xml", "read_verified"),
    "patterns": (
        "Along",
        "Form",
        "Pattern",
        "ends",
        "messages_per_member",
        "shift",
        "tree_depths",
        "tree_parent",
    ),
    "program": ("Program",),
    "registry": ("ALGORITHMS", "algorithms_for"),
    "schedule": ("Collective", "Operation", "Rounds", "Schedule"),
    "verify": ("Verified", "verify"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
