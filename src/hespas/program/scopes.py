"""Name stacks: where in the user's program an operation comes from, as the framework names it.

JAX gives an operation the names that are open where it is traced, transforms around them:
``jit(step)/transpose(jvp(layers_0))/attention/dot_general``.
"""

from __future__ import annotations


def place_text(scope: str, source_location: str) -> str:
    """Return ``scope (file:line:column)``, either alone, or nothing.

    >>> place_text("jit(f)/tanh", "a.py:3"), place_text("", "a.py:3")
    ('jit(f)/tanh (a.py:3)', 'a.py:3')
    """
    if not scope:
        return source_location
    return f"{scope} ({source_location})" if source_location else scope


def joined_scope(outer: str, inner: str) -> str:
    """Return the name stack of an operation in a function, from that of the call and its own.

    One that is complete, as compilers write them, stays.

    >>> joined_scope("jit(f)/layers", "mlp/dot"), joined_scope("jit(f)/call", "jit(f)/layers/dot")
    ('jit(f)/layers/mlp/dot', 'jit(f)/layers/dot')
    """
    if not outer or not inner:
        return outer or inner
    root = outer.partition("/")[0]
    return inner if inner == root or inner.startswith(f"{root}/") else f"{outer}/{inner}"
