"""Read name stacks: an operation's place in the user's program.

JAX gives an operation the names that are open when it is traced, with transforms around them:
``jit(step)/transpose(jvp(layers_0))/attention/dot_general``. `read_scope` splits one into the phase
of a training step, the path of modules, and the operation's own name. `PHASE_RULES` and the sets
below it hold all rules about JAX's spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from itertools import takewhile

import msgspec


def place_text(scope: str, source_location: str) -> str:
    """Return ``scope (file:line:column)``, or the part that exists.

    >>> place_text("jit(f)/tanh", "a.py:3"), place_text("", "a.py:3")
    ('jit(f)/tanh (a.py:3)', 'a.py:3')
    """
    if not scope:
        return source_location
    return f"{scope} ({source_location})" if source_location else scope


def joined_scope(outer: str, inner: str) -> str:
    """Prefix a callee's name stack with the call's.

    A complete inner stack, as compilers write them, stays as it is.

    >>> joined_scope("jit(f)/layers", "mlp/dot"), joined_scope("jit(f)/call", "jit(f)/layers/dot")
    ('jit(f)/layers/mlp/dot', 'jit(f)/layers/dot')
    """
    if not outer or not inner:
        return outer or inner
    root = outer.partition("/")[0]
    return inner if inner == root or inner.startswith(f"{root}/") else f"{outer}/{inner}"


class Phase(Enum):
    """A part of a training step, in execution order."""

    FORWARD = "forward"
    RECOMPUTATION = "recomputation"
    BACKWARD = "backward"
    OPTIMISER = "optimiser"
    OTHER = "other"


TORCH_PHASES = {
    "torch.forward": Phase.FORWARD,
    "torch.recompute": Phase.RECOMPUTATION,
    "torch.backward": Phase.BACKWARD,
    "torch.optimizer": Phase.OPTIMISER,
    "torch.step": Phase.OTHER,
}
"""The first names in the stacks of PyTorch's recorded steps."""
PHASE_RULES: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"(^|/)rematted_computation(/|$)"), Phase.RECOMPUTATION),
    (re.compile(r"(^|[/(])transpose\("), Phase.BACKWARD),
    (re.compile(r"(^|[/(])jvp\("), Phase.FORWARD),
    (
        re.compile(
            r"(^|[/(])(optimi[sz]er|optax|adam|adamw|adafactor|lion|sgd|apply_updates|"
            r"apply_gradients)[^/]*/",
            re.IGNORECASE,
        ),
        Phase.OPTIMISER,
    ),
)
"""Tried in order. Recomputation of `jax.checkpoint` has ``rematted_computation`` in its stack,
inside the gradient; gradients are transposed Jacobian-vector products, forward passes such
products."""

_NAMING_CONTENT = frozenset({"jvp", "transpose", "vmap", "linearize", "custom_transpose"})
"""Transforms that hold a part of the path; others, such as ``jit``, hold a function's name."""
_OTHER_TRANSFORMS = frozenset({"jit", "pjit", "pmap", "xla_call", "remat", "checkpoint"})
_NO_MODULES = frozenset(
    {
        "checkpoint",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "jit",
        "pjit",
        "remat",
        "remat2",
        "rematted_computation",
        "scan",
        "shard_map",
        "while",
    }
)
_ROUND = frozenset({"body", "cond"})
_BRANCH = re.compile(r"branch_\d+_fun")
_EINSUM = "->"
_TRANSFORM = re.compile(r"(\w+)\((.*)\)")
_INDEXED = re.compile(r"^(.*[^\d_.])[_.]\d+$")


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """The phase, modules and operation in a name stack.

    ``phase`` is None if the stack alone doesn't say. ``path`` lists modules, outermost first;
    ``operation`` is the framework's name of the operation, empty if the stack has none.
    """

    phase: Phase | None
    path: tuple[str, ...]
    operation: str


NO_NAME = Named(phase=None, path=(), operation="")


@lru_cache(maxsize=65536)
def read_scope(scope: str) -> Named:
    """Split a name stack into phase, modules and operation.

    A name without structure belongs to an argument or to a compiler's own operation, not to the
    user's program. Joined stacks yield the modules that all of them begin with, and `NO_NAME` if
    their phases differ.

    >>> named = read_scope("jit(step)/transpose(jvp(layers_0))/attention/dot_general")
    >>> named.phase.value, named.path, named.operation
    ('backward', ('layers_0', 'attention'), 'dot_general')
    >>> read_scope("jit(step)/jvp(layers)/while/body/closed_call/mlp/be,ef->bf/dot_general").path
    ('layers', 'mlp')
    >>> read_scope("jit(step)/jvp(layers)/(mlp/dot_general:norm/mul)").path
    ('layers',)
    >>> read_scope("state['weights']") == NO_NAME
    True
    """
    if "/" not in scope:
        return NO_NAME
    # XLA names an operation that it makes of several after all of them.
    parts = list(_split(scope.partition(";")[0]))
    if parts[0] in TORCH_PHASES:
        return Named(phase=TORCH_PHASES[parts[0]], path=tuple(parts[1:-1]), operation=parts[-1])
    joined_position = next(
        (position for position, part in enumerate(parts) if _is_joined(part)), None
    )
    if joined_position is not None:
        prefix, suffix = parts[:joined_position], parts[joined_position + 1 :]
        if any(map(_is_joined, suffix)):
            return NO_NAME
        alternatives = _split(parts[joined_position][1:-1], ":")
        return _common_name(
            [read_scope("/".join([*prefix, alternative, *suffix])) for alternative in alternatives]
        )
    operation = "" if _TRANSFORM.fullmatch(parts[-1]) else parts.pop()
    phase = next((phase for rule, phase in PHASE_RULES if rule.search(scope)), None)
    return Named(phase=phase, path=tuple(_modules(parts)), operation=operation)


def joined_scopes(scopes: Sequence[str]) -> str:
    """Join several name stacks into one, as XLA does.

    >>> joined_scopes(["jit(f)/layers/mlp/dot", "jit(f)/layers/norm/mul"])
    'jit(f)/layers/(mlp/dot:norm/mul)'
    """
    if len(scopes) < 2:
        return "".join(scopes)
    parts = [list(_split(scope)) for scope in scopes]
    shortest = min(map(len, parts)) - 1
    common = next(
        (position for position in range(shortest) if len({stack[position] for stack in parts}) > 1),
        shortest,
    )
    ends = ":".join("/".join(stack[common:]) for stack in parts)
    return "/".join([*parts[0][:common], f"({ends})"])


def _is_joined(part: str) -> bool:
    return part.startswith("(") and part.endswith(")") and ":" in part


def _common_name(alternatives: Sequence[Named]) -> Named:
    phases = {named.phase for named in alternatives}
    if len(phases) > 1 or NO_NAME in alternatives:
        return NO_NAME
    if len(set(alternatives)) == 1:
        return alternatives[0]
    levels = zip(*[named.path for named in alternatives], strict=False)
    path = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels)]
    common = Named(phase=phases.pop(), path=tuple(path), operation="")
    return NO_NAME if common == NO_NAME else common


def _split(scope: str, separator: str = "/") -> Iterator[str]:
    """Split at separators outside parentheses."""
    depth = start = 0
    for position, char in enumerate(scope):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == separator and depth <= 0:
            yield scope[start:position]
            start = position + 1
    yield scope[start:]


def _modules(parts: Iterable[str]) -> list[str]:
    """Return the modules of a stack, outermost first.

    The gradient of a checkpoint repeats the checkpoint's whole stack
    (``transpose(jvp(layers))/jvp(layers)/checkpoint``): modules that repeat at the start of a
    transform count once.
    """
    groups: list[list[str]] = [[]]
    previous_part = ""
    for part in parts:
        names = _names(part)
        if names is not None:
            groups.append(names)
        elif _BRANCH.fullmatch(part) and groups[-1][-1:] == ["cond"]:
            groups[-1].pop()
        elif not (
            not part
            or part in _NO_MODULES
            or _EINSUM in part
            or (previous_part == "while" and part in _ROUND)
        ):
            groups[-1].append(part)
        previous_part = part
    path: list[str] = []
    for group in groups:
        most_repeated = min(len(path), len(group))
        repeated = next((n for n in range(most_repeated, 0, -1) if path[-n:] == group[:n]), 0)
        path += group[repeated:]
    return path


def _names(part: str) -> list[str] | None:
    """Return the modules in a transform; None for anything else."""
    match = _TRANSFORM.fullmatch(part)
    if match is None:
        return None
    if match[1] in _NAMING_CONTENT:
        return _modules(_split(match[2])) if match[2] else []
    return [] if match[1] in _OTHER_TRANSFORMS else None


def merged_layers(path: Iterable[str]) -> tuple[str, ...]:
    """Return a path without module numbers.

    Equal layers share it. Only a number after ``_`` or a dot is a module number: ``layer4`` is a
    name.

    >>> merged_layers(("layers_07", "attention")), merged_layers(("h.3", "layer4", "7"))
    (('layers', 'attention'), ('h', 'layer4', '7'))
    """
    return tuple([_INDEXED.sub(r"\1", name) for name in path])
