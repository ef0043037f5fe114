"""Model what a GPU's compiler makes of a program, for nodes that no compiler serves."""

PUBLIC: dict[str, tuple[str, ...]] = {"fused": ("fused",)}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
