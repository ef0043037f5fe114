"""HLO text and protos to `Program`."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hespas.errors import ProgramError
from hespas.frontend.hlo.collective_fusions import HANDLERS
from hespas.frontend.hlo.locations import Locations
from hespas.frontend.hlo.partitioned import unpartitioned
from hespas.frontend.hlo.reader import ModuleReader
from hespas.frontend.hlo.shared import Originals
from hespas.frontend.hlo.types import leaf_count, leaf_number
from hespas.frontend.loaded import Loaded, Unpartitioned
from hespas.frontend.overrides import LoadOptions, OverrideRecorder
from hespas.program.program import Alias, Function, Program
from hespas.program.types import Type
from hespas.xla.compile.messages import TARGET_ATTRIBUTE
from hespas.xla.hlo.module import HloModule


def read_hlo(module: HloModule, *, name: str, options: LoadOptions) -> Loaded | Unpartitioned:
    """Return the program of one device, or why a parsed module does not hold it yet.

    ``name`` stands in messages. Operations stand in the order of the schedule where there is one.
    Raises `ProgramError` for a module that is no program, `UnsupportedError` for an opcode or a
    type that has no model, and `ConfigError` for options that name a loop or branch that is not
    there.
    """
    message = module.message
    sharded = unpartitioned(module, name)
    if sharded is not None:
        return sharded
    computations = {each.id: each for each in message.computations}
    reader = ModuleReader(
        module=message,
        source=name,
        overrides=OverrideRecorder(options=options, unit="instruction"),
        handlers=HANDLERS,
        locations=Locations(message.stack_frame_index),
        computations=computations,
        originals=Originals(computations=computations),
    )
    entry = _entry(message, computations, name)
    main = Function(name="main", body=reader.block(entry, "func"))
    used = reader.overrides.used(name)
    program = Program(
        functions={"main": main} | reader.functions,
        replicas=module.replicas,
        partitions=module.partitions,
        source=name,
        module_name=message.name,
        assumptions=tuple(reader.overrides.assumptions),
        is_scheduled=entry in message.schedule.sequences,
        aliases=_aliases(reader, computations[entry]),
        compiled_for=message.frontend_attributes.map.get(TARGET_ATTRIBUTE, ""),
    )
    return Loaded(program=program, used=used)


def _entry(message: Any, computations: dict[int, Any], name: str) -> int:
    if message.entry_computation_id in computations:
        return message.entry_computation_id
    wanted = message.entry_computation_name
    for number, computation in computations.items():
        if wanted and computation.name == wanted:
            return number
    raise ProgramError("the module has no entry computation", location=name)


def _aliases(reader: ModuleReader, entry: Any) -> tuple[Alias, ...]:
    """Return ``input_output_alias`` as positions among flattened results and arguments."""
    entries = reader.module.input_output_alias.entries
    if not entries:
        return ()
    instructions = {each.id: each for each in entry.instructions}
    made = reader.types.read(instructions[entry.root_id].shape)
    given: dict[int, Type] = {
        each.parameter_number: reader.types.read(each.shape)
        for each in entry.instructions
        if each.opcode == "parameter"
    }
    counts = [leaf_count(given[at]) for at in sorted(given)]
    before = [0, *accumulate(counts)]
    found: list[Alias] = []
    for alias in entries:
        number: int = alias.parameter_number
        if number not in given:
            raise ProgramError(
                f"parameter {number} is aliased but not there", location=reader.source
            )
        found.append(
            Alias(
                result=leaf_number(made, tuple(alias.output_shape_index)),
                argument=before[number]
                + leaf_number(given[number], tuple(alias.parameter_shape_index)),
            )
        )
    return tuple(sorted(found, key=lambda alias: (alias.result, alias.argument)))
