"""What a library's product does to its result before it is written.

cuBLASLt adds a matrix, and a vector to each row, and applies a ReLU or a GELU that is computed by
tanh, while the result is in registers. XLA gives a product what it can take, if nothing else reads
what is between.

Source: openxla/xla, ``GemmRewriter`` (xla/service/gpu/transforms/gemm_rewriter.cc, Apache License
2.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hespas.base.frozen import frozen
from hespas.lower.roles import Role, fastest
from hespas.program.attrs import DimensionsAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Op, Value, size_of, tensor_of

_MOST_OF_ACTIVATION = 12


@frozen
class Epilogues:
    """Finds what products take in.

    ``users`` are the operations that read each one, ``producer`` the one that makes a value,
    ``is_needed`` says whether the caller reads an operation.
    """

    operations: Sequence[Op]
    roles: Sequence[Role]
    users: Sequence[Sequence[int]]
    producer: Mapping[Value, int]
    is_needed: Sequence[bool]

    def find(self) -> dict[int, set[int]]:
        """Return the operations that products' kernels take in."""
        found: dict[int, set[int]] = {}
        claimed: set[int] = set()
        for at, op in enumerate(self.operations):
            if op.kind != "dot_general":
                continue
            last, taken = self._epilogue(at)
            if last != at and claimed.isdisjoint(taken):
                found[last] = taken - {last}
                claimed |= taken
        return found

    def _epilogue(self, product: int) -> tuple[int, set[int]]:
        """Return the last operation of a product's epilogue, and the whole group."""
        last, taken = product, {product}
        end, views = self._through_views(product)
        kinds: set[bool] = set()
        while (addition := self._only_user(end)) is not None:
            added = self._added(addition, end)
            if added is None or bool(added) in kinds:
                break
            kinds.add(bool(added))
            taken |= {*views, *added, addition}
            last = addition
            end, views = self._through_views(addition)
        activation = self._activation(end)
        if activation:
            taken |= {*views, *activation}
            last = max(activation)
        return last, taken

    def _only_user(self, at: int) -> int | None:
        users = self.users[at]
        return users[0] if len(users) == 1 and not self.is_needed[at] else None

    def _through_views(self, at: int) -> tuple[int, set[int]]:
        """Return the last of the views that alone read an operation, and all views."""
        views: set[int] = set()
        user = self._only_user(at)
        while user is not None and self.roles[user] is Role.VIEW:
            views.add(user)
            at, user = user, self._only_user(user)
        return at, views

    def _added(self, addition: int, to: int) -> set[int] | None:
        """Return the broadcast of the bias that an epilogue adds, if any.

        It is empty for a matrix.
        """
        op = self.operations[addition]
        if op.kind != "add" or op.operands[0] is op.operands[1]:
            return None
        (other,) = [value for value in op.operands if self.producer.get(value) != to]
        maker = self.producer.get(other)
        if maker is None:
            return set()
        if self.roles[maker] is Role.MADE:
            return None
        if self.operations[maker].traits.category is not Category.BROADCAST:
            return set()
        is_bias = self._is_bias(self.operations[maker], op.results[0])
        return {maker} if is_bias else None

    def _is_bias(self, op: Op, made: Value) -> bool:
        """Return whether a broadcast repeats a vector for each row of a result."""
        if not isinstance(op.attrs, DimensionsAttrs) or op.kind != "broadcast_in_dim":
            return False
        (vector,) = op.operands
        along = fastest(made)
        return along in op.attrs.dimensions and size_of(vector) == tensor_of(made).shape[along]

    def _activation(self, at: int) -> set[int]:
        """Return the activation that is an operation's only reader, if any."""
        inside, reached = set[int](), {at}
        pending = [*self.users[at]]
        while pending and len(inside) < _MOST_OF_ACTIVATION and not self.is_needed[at]:
            each = min(pending)
            pending.remove(each)
            if each in inside or not self._is_made_of(each, reached):
                continue
            inside.add(each)
            reached.add(each)
            if self._is_closed(at, inside) and self._is_known(inside):
                return inside
            pending += self.users[each]
        return set()

    def _is_made_of(self, at: int, reached: set[int]) -> bool:
        """Return whether an operation combines others, and constants, element by element."""
        op = self.operations[at]
        before = {self.producer.get(value) for value in op.operands} - reached
        return op.traits.is_elementwise and all(
            each is not None and self.roles[each] is Role.MADE for each in before
        )

    def _is_closed(self, at: int, inside: set[int]) -> bool:
        """Return whether only the last operation is read outside."""
        rest = {at, *inside} - {max(inside)}
        return all(
            inside.issuperset(self.users[each]) and not self.is_needed[each] for each in rest
        )

    def _is_known(self, inside: set[int]) -> bool:
        kinds = sorted(self.operations[each].kind for each in inside)
        return kinds == ["maximum"] or (kinds.count("tanh") == 1 and set(kinds) == _OF_GELU)


_OF_GELU = {"add", "multiply", "tanh"}
