"""Read a parsed HLO module as a `Program`."""

from __future__ import annotations

from dataclasses import field
from functools import cache
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.errors import ProgramError
from hespas.frontend.hlo import asynchronous, instructions, slices
from hespas.frontend.hlo.attributes import COLLECTIVE_PREFIXES, instructions_of
from hespas.frontend.hlo.reader import Locations, ModuleReader, Originals
from hespas.frontend.hlo.types import flat, fresh_tree, leaf_number
from hespas.frontend.host_memory import with_host_memory
from hespas.frontend.overrides import Loaded, LoadOptions, OverrideRecorder, Unpartitioned
from hespas.program.attrs import PARTITIONER_MARKERS, WhileAttrs
from hespas.program.program import (
    Alias,
    Block,
    Function,
    Op,
    Program,
    Value,
    is_communication_op,
    scheduled_ops,
    started_ops,
)
from hespas.program.rewrite import each_block, each_op
from hespas.program.scopes import NO_NAME, joined_scopes, read_scope
from hespas.xla.compile.messages import TARGET_ATTRIBUTE
from hespas.xla.hlo.module import HloModule
from hespas.xla.hlo.schema import enum_names


def read_hlo(module: HloModule, *, name: str, options: LoadOptions) -> Loaded | Unpartitioned:
    """Return one device's program, or why there is none.

    ``name`` appears in messages. Operations follow the schedule if there is one. Raises
    `ProgramError` for a module that is no program, `UnsupportedError` for an opcode or a type
    without a model, and `ConfigError` for options that name a missing loop or branch.
    """
    message = module.message
    sharded = _unpartitioned(module, name)
    if sharded is not None:
        return sharded
    slice_count = slices.slices_of(message)
    replicas, partitions = module.replicas, module.partitions
    if slice_count > 1:
        message = slices.with_all_slices(
            message, slices=slice_count, devices=(replicas or 1) * (partitions or 1)
        )
        replicas, partitions = slices.counts_of_slices(replicas, partitions, slices=slice_count)
    computations = {item.id: item for item in message.computations}
    reader = ModuleReader(
        module=message,
        source=name,
        overrides=OverrideRecorder(options=options, unit="instruction"),
        handlers=instructions.HANDLERS | asynchronous.HANDLERS | slices.HANDLERS,
        locations=Locations(message.stack_frame_index),
        computations=computations,
        originals=Originals(computations=computations),
        slices=slice_count,
    )
    entry = _entry(message, computations, name)
    main = Function(name="main", body=reader.block(entry, "func"))
    functions = {"main": main} | reader.functions
    used = reader.overrides.used(name)
    program = Program(
        functions={name: with_named_collectives(item) for name, item in functions.items()},
        replicas=replicas,
        partitions=partitions,
        source=name,
        module_name=message.name,
        assumptions=tuple(reader.overrides.assumptions),
        is_scheduled=entry in message.schedule.sequences,
        aliases=_aliases(reader, computations[entry]),
        compiled_for=message.frontend_attributes.map.get(TARGET_ATTRIBUTE, ""),
    )
    return Loaded(program=with_host_memory(program), used=used)


def _entry(message: Any, computations: dict[int, Any], name: str) -> int:
    if message.entry_computation_id in computations:
        return message.entry_computation_id
    name_of_entry = message.entry_computation_name
    for number, computation in computations.items():
        if name_of_entry and computation.name == name_of_entry:
            return number
    raise ProgramError("the module has no entry computation", location=name)


def _aliases(reader: ModuleReader, entry: Any) -> tuple[Alias, ...]:
    entries = reader.module.input_output_alias.entries
    if not entries:
        return ()
    instructions_by_id = {item.id: item for item in entry.instructions}
    results = fresh_tree(reader.types.read(instructions_by_id[entry.root_id].shape))
    parameters = reader.parameters(entry)
    offsets = [0, *accumulate([len(flat([parameter])) for parameter in parameters])]
    aliases: list[Alias] = []
    for alias in entries:
        number: int = alias.parameter_number
        if not 0 <= number < len(parameters):
            raise ProgramError(
                f"parameter {number} is aliased but not there", location=reader.source
            )
        aliases.append(
            Alias(
                result=leaf_number(results, tuple(alias.output_shape_index)),
                argument=offsets[number]
                + leaf_number(parameters[number], tuple(alias.parameter_shape_index)),
            )
        )
    return tuple(sorted(aliases, key=lambda alias: (alias.result, alias.argument)))


_PARTITIONED_SUFFIX = "_spmd"


def _unpartitioned(module: HloModule, name: str) -> Unpartitioned | None:
    """Return why a module is not partitioned yet, or None.

    The partitioner removes its markers and the shardings of all instructions except parameters, and
    gives its computations the suffix ``_spmd``.
    """
    reason = _sharded_reason(module)
    if not reason:
        return None
    return Unpartitioned(
        message=f"the program is sharded but not yet partitioned ({reason})",
        location=name,
        hint="give what XLA's SPMD partitioner made of it, which holds its collectives",
    )


def _sharded_reason(module: HloModule) -> str:
    message = module.message
    if message.schedule.sequences:
        return ""
    sharded_parameters: list[str] = []
    communicates = False
    for instruction in instructions_of(message):
        opcode: str = instruction.opcode
        communicates = communicates or opcode.startswith(COLLECTIVE_PREFIXES)
        if opcode == "custom-call" and instruction.custom_call_target in PARTITIONER_MARKERS:
            return f"%{instruction.name} is {instruction.custom_call_target}"
        if instruction.HasField("sharding") and _divides(instruction.sharding):
            if opcode != "parameter":
                return f"%{instruction.name} has a sharding"
            sharded_parameters.append(instruction.name)
    is_partitioned = str(message.entry_computation_name).endswith(_PARTITIONED_SUFFIX)
    if not sharded_parameters or communicates or is_partitioned or module.partitions == 1:
        return ""
    return f"%{sharded_parameters[0]} has a sharding, and there is no collective"


def _divides(sharding: Any) -> bool:
    return enum_names("xla.OpSharding.Type")[sharding.type] == "OTHER"


_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})
_MOST_SEARCHED = 64
"""The most values to search for operations that have a name."""


def with_named_collectives(function: Function) -> Function:
    """Name combined collectives after their neighbours.

    A compiler leaves a collective that it combined of several without a name. A reduction is named
    after the producers of its operands, any other collective after the readers of its results.
    Their name stacks are joined as XLA joins the names of operations that it merges
    (`hespas.program.scopes.joined_scopes`): the collective belongs to a module if all agree.
    """
    body = function.body
    if not any(_unnamed_collective(op) for op in scheduled_ops(body)):
        return function

    @cache
    def neighbours(*, backwards: bool) -> _Neighbours:
        return _Neighbours.of(body, backwards=backwards)

    def named(op: Op) -> Op:
        collective = _unnamed_collective(op)
        if collective is None:
            return op
        scope = neighbours(backwards=collective.kind in _REDUCTIONS).scope(op)
        return _with_scope(op, scope) if scope else op

    def named_block(block: Block) -> Block:
        return replace(block, operations=tuple(map(named, block.operations)))

    return Function(name=function.name, body=each_block(body, named_block))


def _unnamed_collective(op: Op) -> Op | None:
    """Return an operation's unnamed collective, itself or started by it."""
    if is_communication_op(op):
        return op if read_scope(op.scope) is NO_NAME else None
    collective = next(filter(is_communication_op, started_ops(op)), None)
    return None if collective is None else _unnamed_collective(collective)


def _with_scope(op: Op, scope: str) -> Op:
    def named(inner: Op) -> Op:
        return replace(inner, scope=scope) if is_communication_op(inner) else inner

    if is_communication_op(op):
        return named(op)
    regions = tuple([each_op(region, named) for region in op.regions])
    return replace(op, scope=scope, regions=regions)


@frozen
class _Neighbours:
    """The producers or the readers of each value.

    Loops and branches are included. ``equivalents`` maps a value to others of a loop: the value
    returned by the previous iteration, or the argument of the next one.
    """

    backwards: bool
    ops: dict[Value, list[Op]] = field(default_factory=dict[Value, list[Op]])
    equivalents: dict[Value, list[Value]] = field(default_factory=dict[Value, list[Value]])

    @classmethod
    def of(cls, block: Block, *, backwards: bool) -> _Neighbours:
        neighbours = cls(backwards=backwards)
        for op in scheduled_ops(block):
            if not isinstance(op.attrs, WhileAttrs):
                for value in op.results if backwards else op.operands:
                    neighbours.ops.setdefault(value, []).append(op)
                continue
            body = op.regions[-1]
            returned, arguments = body.operations[-1].operands, body.arguments
            if backwards:
                pairs = zip((*arguments, *op.results), (*returned, *returned), strict=False)
            else:
                pairs = zip((*returned, *op.operands), (*arguments, *arguments), strict=False)
            for value, equivalent in pairs:
                neighbours.equivalents.setdefault(value, []).append(equivalent)
        return neighbours

    def scope(self, op: Op) -> str:
        """Join the name stacks of the nearest named operations."""
        scopes: set[str] = set()
        pending = list(op.operands if self.backwards else op.results)
        seen = set(pending)
        while pending and len(seen) <= _MOST_SEARCHED:
            value = pending.pop()
            next_values = [*self.equivalents.get(value, ())]
            for neighbour in self.ops.get(value, ()):
                if read_scope(neighbour.scope) is not NO_NAME:
                    scopes.add(neighbour.scope)
                else:
                    next_values += neighbour.operands if self.backwards else neighbour.results
            pending += [next_value for next_value in next_values if next_value not in seen]
            seen.update(next_values)
        if pending:
            return ""
        joined = joined_scopes(sorted(scopes))
        return "" if read_scope(joined) is NO_NAME else joined
