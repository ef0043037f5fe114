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
        epilogues: dict[int, set[int]] = {}
        claimed: set[int] = set()
        for place, op in enumerate(self.operations):
            if op.kind != "dot_general":
                continue
            last, members = self._epilogue(place)
            if last != place and claimed.isdisjoint(members):
                epilogues[last] = members - {last}
                claimed |= members
        return epilogues

    def _epilogue(self, product: int) -> tuple[int, set[int]]:
        """Return the last operation of a product's epilogue, and the whole group."""
        last, members = product, {product}
        end, views = self._through_views(product)
        kinds: set[bool] = set()
        while (addition := self._only_user(end)) is not None:
            added = self._added(addition, end)
            if added is None or bool(added) in kinds:
                break
            kinds.add(bool(added))
            members |= {*views, *added, addition}
            last = addition
            end, views = self._through_views(addition)
        activation = self._activation(end)
        if activation:
            members |= {*views, *activation}
            last = max(activation)
        return last, members

    def _only_user(self, place: int) -> int | None:
        users = self.users[place]
        return users[0] if len(users) == 1 and not self.is_needed[place] else None

    def _through_views(self, place: int) -> tuple[int, set[int]]:
        """Return the last single-reader view, and all views."""
        views: set[int] = set()
        user = self._only_user(place)
        while user is not None and self.roles[user] is Role.VIEW:
            views.add(user)
            place, user = user, self._only_user(user)
        return place, views

    def _added(self, addition: int, to: int) -> set[int] | None:
        """Return the broadcast of an added bias, empty for a matrix, if any."""
        op = self.operations[addition]
        if op.kind != "add" or op.operands[0] is op.operands[1]:
            return None
        (addend,) = [value for value in op.operands if self.producer.get(value) != to]
        maker = self.producer.get(addend)
        if maker is None:
            return set()
        if self.roles[maker] is Role.MADE:
            return None
        if self.operations[maker].traits.category is not Category.BROADCAST:
            return set()
        is_bias = self._is_bias(self.operations[maker], op.results[0])
        return {maker} if is_bias else None

    def _is_bias(self, op: Op, result: Value) -> bool:
        """Return whether a broadcast repeats a vector per row."""
        if not isinstance(op.attrs, DimensionsAttrs) or op.kind != "broadcast_in_dim":
            return False
        (vector,) = op.operands
        along = fastest(result)
        return along in op.attrs.dimensions and size_of(vector) == tensor_of(result).shape[along]

    def _activation(self, place: int) -> set[int]:
        """Return the activation that is an operation's only reader, if any."""
        inside, reached = set[int](), {place}
        pending = [*self.users[place]]
        while pending and len(inside) < _MOST_OF_ACTIVATION and not self.is_needed[place]:
            candidate = min(pending)
            pending.remove(candidate)
            if candidate in inside or not self._is_made_of(candidate, reached):
                continue
            inside.add(candidate)
            reached.add(candidate)
            if self._is_closed(place, inside) and self._is_known(inside):
                return inside
            pending += self.users[candidate]
        return set()

    def _is_made_of(self, place: int, reached: set[int]) -> bool:
        """Return whether an operation combines others elementwise."""
        op = self.operations[place]
        before = {self.producer.get(value) for value in op.operands} - reached
        return op.traits.is_elementwise and all(
            operand is not None and self.roles[operand] is Role.MADE for operand in before
        )

    def _is_closed(self, place: int, inside: set[int]) -> bool:
        """Return whether only the last operation is read outside."""
        inner = {place, *inside} - {max(inside)}
        return all(
            inside.issuperset(self.users[member]) and not self.is_needed[member] for member in inner
        )

    def _is_known(self, inside: set[int]) -> bool:
        kinds = sorted(self.operations[member].kind for member in inside)
        return kinds == ["maximum"] or (kinds.count("tanh") == 1 and set(kinds) == _OF_GELU)


_OF_GELU = {"add", "multiply", "tanh"}
