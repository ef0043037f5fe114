"""Set the rows of experts' products and exchanges.

A program for any routing allocates more rows than it uses: the router decides how many rows each
device and each group gets, and `hespas.program.experts.ExpertLoad` states it. The step waits for
the busiest device.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hespas.base.fields import refuse_unused
from hespas.base.frozen import frozen
from hespas.errors import ConfigError, option
from hespas.program.attrs import CollectiveAttrs, CustomCallAttrs, DotAttrs
from hespas.program.experts import (
    EXPERTS,
    UNIFORM,
    ExpertLoad,
    ExpertOptions,
    GroupedProduct,
    grouped_product,
)
from hespas.program.program import Op, Program, all_ops, tensor_of
from hespas.program.rewrite import each_op, with_bodies
from hespas.program.text import array_text


@frozen
class Capacity:
    """The most tokens of an expert: ``factor`` even shares."""

    experts: int
    factor: float


def with_expert_load(
    program: Program, load: ExpertLoad | None, *, capacity: Capacity | None = None
) -> Program:
    """Return the program with its experts' rows, and notes.

    Without a load, exchanged rows are spread evenly, the groups of other products fill their
    operands, and a recorded step has the rows that it was recorded with. ``capacity`` is the size
    of experts of fixed size, known for a model: it decides how many tokens are dropped, but no
    time. Raises `ConfigError` for a load with another number of experts, or one without effect on
    the program.
    """
    users = _LoadUsers.of(program)
    if load is None and (program.is_recorded or not users.exchanges):
        return program
    applied = load or UNIFORM
    notes: list[str] = []
    if users.exchanges or users.products:
        filler = _Filler.of(users, applied, program)
        program = with_bodies(program, lambda body: each_op(body, filler.with_rows))
        notes += filler.notes(is_given=load is not None)
    elif capacity is None:
        refuse_unused(ExpertOptions(expert_load=load), {EXPERTS: True}, location=program.source)
    if load is not None and capacity is not None:
        notes.append(_dropped(applied, capacity, program.source))
    return msgspec.structs.replace(program, assumptions=(*notes, *program.assumptions))


def _dropped(load: ExpertLoad, capacity: Capacity, location: str) -> str:
    experts = capacity.experts
    _check_count(load, experts, location)
    dropped = load.beyond(capacity.factor / experts, experts=experts, devices=experts)
    origin = f", by {load.source}" if load.source else ""
    return (
        f"an expert takes {100 * capacity.factor:g} % of an even share of the tokens, and is sent "
        f"and computes as much whatever it gets; {100 * dropped:.3g} % of the tokens are dropped"
        f"{origin}"
    )


def _check_count(load: ExpertLoad, experts: int, location: str) -> None:
    if load.experts not in {None, experts}:
        raise ConfigError(
            f"{option('expert_load')} lists {load.experts} experts, and the program has {experts}",
            location=location,
            hint=f"list {experts}",
        )


@frozen
class _Exchange:
    """An exchange: devices send ``rows``, receive at most ``room``."""

    devices: int
    rows: int
    room: int


@frozen
class _LoadUsers:
    """The exchanges and grouped products that depend on expert load."""

    exchanges: tuple[_Exchange, ...]
    products: tuple[GroupedProduct, ...]

    @classmethod
    def of(cls, program: Program) -> _LoadUsers:
        operations = list(all_ops(program))
        exchanges = dict.fromkeys([_exchange(op, program) for op in operations])
        products = dict.fromkeys(map(grouped_product, operations))
        return cls(exchanges=tuple(filter(None, exchanges)), products=tuple(filter(None, products)))

    def exchange_before(self, product: GroupedProduct) -> _Exchange | None:
        """Return the exchange that feeds a product, or None."""
        return next(
            (exchange for exchange in self.exchanges if exchange.room == product.rows), None
        )

    def devices(self, product: GroupedProduct, load: ExpertLoad) -> int:
        """Return the devices that divide the experts of a product."""
        exchange = self.exchange_before(product)
        if exchange is not None:
            return exchange.devices
        experts = load.experts or product.groups
        return experts // product.groups if experts % product.groups == 0 else 1


def _exchange(op: Op, program: Program) -> _Exchange | None:
    if op.kind != "ragged_all_to_all" or not isinstance(op.attrs, CollectiveAttrs):
        return None
    lengths = [tensor_of(operand).shape[0] for operand in op.operands[:2]]
    devices = op.attrs.groups.group_size or program.declared_devices or 1
    return _Exchange(devices=devices, rows=min(lengths), room=max(lengths))


@frozen
class _Filler:
    """Sets the rows of ``experts`` experts by ``load``."""

    users: _LoadUsers
    load: ExpertLoad
    experts: int
    program: Program

    @classmethod
    def of(cls, users: _LoadUsers, load: ExpertLoad, program: Program) -> _Filler:
        counts = {product.groups * users.devices(product, load) for product in users.products}
        exchanging = {exchange.devices for exchange in users.exchanges}
        experts = load.experts or max(counts or exchanging)
        if counts:
            _check_count(load, max(counts), program.source)
        devices = next((count for count in exchanging if experts % count), None)
        if devices is not None:
            raise ConfigError(
                f"{experts} experts are not divided by the {devices} devices that exchange rows",
                location=program.source,
                hint=f"list a multiple of {devices} in {option('expert_load')}",
            )
        return cls(users=users, load=load, experts=experts, program=program)

    def with_rows(self, op: Op) -> Op:
        """Return a product or exchange with its rows set."""
        exchange, product = _exchange(op, self.program), grouped_product(op)
        # The types of attributes follow from both; the checker does not know.
        if exchange is not None and isinstance(op.attrs, CollectiveAttrs):
            times = self._times(exchange)
            attrs = msgspec.structs.replace(op.attrs, imbalance=times)
            return _with_attribute(op, attrs, "mhlo.imbalance", f"{times!r} : f64")
        if product is not None and isinstance(op.attrs, DotAttrs | CustomCallAttrs):
            rows = self._rows(product)
            attrs = msgspec.structs.replace(op.attrs, group_rows=rows)
            return _with_attribute(op, attrs, "mhlo.group_rows", array_text(rows))
        return op

    def _times(self, exchange: _Exchange) -> float:
        shares = self.load.busiest(experts=self.experts, devices=exchange.devices)
        return min(exchange.devices * sum(shares), exchange.room / exchange.rows)

    def _rows(self, product: GroupedProduct) -> tuple[int, ...]:
        exchange = self.users.exchange_before(product)
        devices = self.users.devices(product, self.load)
        tokens = product.rows if exchange is None else exchange.rows * exchange.devices
        shares = self.load.busiest(experts=self.experts, devices=devices)
        room = min(1.0, product.rows / max(1.0, tokens * sum(shares)))
        return tuple([round(tokens * share * room) for share in shares])

    def notes(self, *, is_given: bool) -> Iterator[str]:
        """Yield the assumptions and the share of dropped tokens."""
        origin = "as the user says" if is_given else "which no program says"
        if not self.load.source and self.users.products:
            yield f"each of the {self.experts} experts gets as many tokens, {origin}"
        elif not self.load.source:
            yield f"each of {self.experts} devices gets as many rows of the others, {origin}"
        for exchange in self.users.exchanges:
            devices = exchange.devices
            shares = self.load.busiest(experts=self.experts, devices=devices)
            if self.load.source:
                yield (
                    f"tokens of {self.experts} experts by {self.load.source}: of {devices} devices "
                    f"the busiest gets {devices * sum(shares):.3g} times an even share, and all "
                    "wait for it"
                )
            room = exchange.room / (exchange.rows * devices)
            dropped = self.load.beyond(room, experts=self.experts, devices=devices)
            if dropped > _ROUNDING:
                yield (
                    f"a device has room for {exchange.room} rows: {100 * dropped:.3g} % of the "
                    "tokens are dropped"
                )
        if self.load.source and not self.users.exchanges:
            yield f"rows of {self.experts} experts by {self.load.source}"


_ROUNDING = 1e-12


def _with_attribute(
    op: Op, attrs: CollectiveAttrs | DotAttrs | CustomCallAttrs, name: str, text: str
) -> Op:
    attributes = tuple(sorted({**dict(op.attributes), name: text}.items()))
    return msgspec.structs.replace(op, attrs=attrs, attributes=attributes)
