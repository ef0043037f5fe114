"""Read MLIR locations: the framework's name stack, and the line of the source.

JAX writes ``loc("jit(step)/layers/dot_general"(callsite("f"("a.py":3:4) at ...)))``: the name stack
first, then the Python functions that called each other. Calls have a name of their kind before
(``"jit:"``). Passes that inline calls write ``callsite(callee at caller)``, and passes that join
operations ``fused[...]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hespas.program.scopes import joined_scope


def name_stack(location: Any) -> str:
    """Return the name stack in a location; empty where there is none.

    That of an operation from an inlined call stands behind the call's own. An operation that was
    joined from several has the first name among them.
    """
    match type(location).__name__:
        case "NameLoc":
            name: str = location.name_str
            return name_stack(location.child_loc) if name.endswith(":") or not name else name
        case "CallSiteLoc":
            return joined_scope(_stack_of_call(location.caller), _stack_of_call(location.callee))
        case "FusedLoc":
            stacks = [name_stack(each) for each in location.locations]
            return next((stack for stack in stacks if stack), "")
        case _:
            return ""


def _stack_of_call(location: Any) -> str:
    """Return the name stack of one side of a call; a Python function's name is none."""
    if type(location).__name__ != "NameLoc":
        return name_stack(location)
    name: str = location.name_str
    is_function = hasattr(location.child_loc, "start_line") and not set(name) & set("/(:")
    return "" if is_function else name_stack(location)


def source_line(location: Any, source: str) -> str:
    """Return ``file:line:column``, the innermost one; empty where there is none.

    ``source`` is the name of the file that was parsed.
    """
    for file, line, column in _files(location):
        return f"{source if file == '-' else file}:{line}:{column}"
    return ""


def _files(location: Any) -> Iterator[tuple[str, int, int]]:
    match type(location).__name__:
        case "FileLineColLoc":
            yield location.filename, location.start_line, location.start_col
        case "NameLoc":
            yield from _files(location.child_loc)
        case "CallSiteLoc":
            yield from _files(location.callee)
            yield from _files(location.caller)
        case "FusedLoc":
            for each in location.locations:
                yield from _files(each)
        case _:
            return
