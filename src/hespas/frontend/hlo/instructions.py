"""Read single instructions by opcode."""

from __future__ import annotations

from typing import Any

from hespas.errors import ProgramError
from hespas.frontend.hlo import config
from hespas.frontend.hlo.attributes import (
    OPCODES,
    convolution_reading,
    integer_text,
    listed,
    precisions,
    string_text,
)
from hespas.frontend.hlo.reader import Handler, ModuleReader, Scope
from hespas.frontend.hlo.types import flat, fresh_tree, leaf_count, leaf_number, read_constant
from hespas.frontend.loops import trip_count
from hespas.program.attrs import (
    TOP_K,
    BitcastAttrs,
    CallAttrs,
    ConvolutionAttrs,
    CustomCallAttrs,
    FusionAttrs,
    InPlace,
)
from hespas.program.program import Value
from hespas.program.text import quoted_symbol
from hespas.program.types import TensorType

_CONVOLUTION_PREFIX = "__cudnn$conv"

_PLACEMENT = "_xla_buffer_placement"


def plain(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read an instruction that is one operation; its computations become regions."""
    opcode = OPCODES[instruction.opcode]
    attrs, attributes = opcode.read(instruction)
    called = instruction.called_computation_ids
    reader.emit(
        instruction,
        scope,
        name=(opcode.dialect, opcode.kind),
        attrs=attrs,
        attributes=attributes,
        regions=tuple([reader.body(number) for number in called]) if called else (),
    )


def tuple_of(reader: ModuleReader, instruction: Any, scope: Scope) -> None:  # noqa: ARG001 - as all in the table
    """Combine values; no operation runs."""
    scope.trees[instruction.id] = tuple(map(scope.tree, instruction.operand_ids))


def element(reader: ModuleReader, instruction: Any, scope: Scope) -> None:  # noqa: ARG001 - as all in the table
    """Read a member of a tuple; no operation runs."""
    members, index = scope.tree(instruction.operand_ids[0]), instruction.tuple_index
    if isinstance(members, Value) or not 0 <= index < len(members):
        raise ProgramError(f"its operand has no member {index}")
    scope.trees[instruction.id] = members[index]


def alias(reader: ModuleReader, instruction: Any, scope: Scope) -> None:  # noqa: ARG001 - as all in the table
    """Pass on the first operand: ``add-dependency`` only orders."""
    scope.trees[instruction.id] = scope.tree(instruction.operand_ids[0])


def constant(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read a literal."""
    kind = reader.types.read(instruction.shape)
    attrs, attributes = read_constant(instruction.literal, kind)
    name = ("stablehlo", "constant")
    reader.emit(instruction, scope, name=name, attrs=attrs, attributes=attributes)


def bitcast(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read a bitcast, a view of the same bytes."""
    (operand,) = scope.operands(instruction)
    result_type = reader.types.read(instruction.shape)
    attrs = BitcastAttrs(
        source_layout=operand.type.layout if isinstance(operand.type, TensorType) else None,
        result_layout=result_type.layout if isinstance(result_type, TensorType) else None,
    )
    reader.emit(instruction, scope, name=("mhlo", "bitcast"), attrs=attrs, operands=(operand,))


def fusion(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read a fusion; equal bodies share one block."""
    attrs = FusionAttrs(
        kind=instruction.fusion_kind,
        backend_kind=config.fusion_kind(instruction.backend_config),
        backend_config=config.kernel_config(instruction.backend_config),
        in_place=_in_place(reader, instruction, scope),
    )
    results = leaf_count(reader.types.read(instruction.shape))
    aliases = _in_place_text(attrs.in_place, results)
    texts = {"fusion_kind": f"#mhlo<fusion_kind {attrs.kind}>"} | aliases
    if attrs.backend_config:
        texts["backend_config"] = string_text(attrs.backend_config)
    body = reader.body(_called_computation(instruction), "mhlo")
    operands = scope.operands(instruction)
    if len(operands) != len(body.arguments):
        raise ProgramError(
            f"a fusion of {len(operands)} values has {len(body.arguments)} in its body"
        )
    reader.emit(
        instruction,
        scope,
        name=("mhlo", "fusion"),
        attrs=attrs,
        attributes=listed(texts),
        regions=(body,),
        operands=operands,
    )


def _called_computation(instruction: Any) -> int:
    if len(instruction.called_computation_ids) != 1:
        count = len(instruction.called_computation_ids)
        raise ProgramError(f"{instruction.opcode} calls {count} computations, not one")
    return instruction.called_computation_ids[0]


def _in_place(reader: ModuleReader, instruction: Any, scope: Scope) -> tuple[InPlace, ...]:
    if not instruction.output_operand_aliasing:
        return ()
    results = fresh_tree(reader.types.read(instruction.shape))
    operands = [scope.tree(number) for number in instruction.operand_ids]
    starts = [len(flat(operands[:position])) for position in range(len(operands))]
    aliases: list[InPlace] = []
    for alias in instruction.output_operand_aliasing:
        if not 0 <= alias.operand_index < len(operands):
            raise ProgramError(f"operand {alias.operand_index} is aliased but not there")
        position: int = alias.operand_index
        inner = leaf_number(operands[position], tuple(alias.operand_shape_index))
        result = leaf_number(results, tuple(alias.output_shape_index))
        aliases.append(InPlace(result=result, operand=starts[position] + inner))
    return tuple(aliases)


def _in_place_text(aliases: tuple[InPlace, ...], results: int) -> dict[str, str]:
    if not aliases:
        return {}
    entries = [
        "#stablehlo.output_operand_alias<output_tuple_indices = "
        f"{[alias.result] if results > 1 else []}, operand_index = {alias.operand}, "
        "operand_tuple_indices = []>"
        for alias in aliases
    ]
    return {"output_operand_aliases": f"[{', '.join(entries)}]"}


def call(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read a call; the computation becomes a function."""
    callee = reader.function(_called_computation(instruction))
    reader.emit(
        instruction,
        scope,
        name=("func", "call"),
        attrs=CallAttrs(callee=callee),
        attributes=(("callee", f"@{quoted_symbol(callee)}"),),
    )


def custom_call(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read a call of a library or a custom kernel."""
    target: str = instruction.custom_call_target
    described = target.startswith(_CONVOLUTION_PREFIX)
    convolution, texts = convolution_reading(instruction) if described else (None, ())
    called = tuple(map(reader.function, instruction.called_computation_ids))
    attrs = CustomCallAttrs(
        target=target,
        backend_config=config.kernel_config(instruction.backend_config),
        called_functions=called,
        convolution=convolution if isinstance(convolution, ConvolutionAttrs) else None,
        precision=precisions(instruction),
        in_place=_in_place(reader, instruction, scope),
    )
    results = leaf_count(reader.types.read(instruction.shape))
    texts = {"call_target_name": string_text(target), **dict(texts)}
    texts |= _in_place_text(attrs.in_place, results)
    placement = instruction.frontend_attributes.map.get(_PLACEMENT, "")
    if placement:
        texts["mhlo.frontend_attributes"] = f"{{{_PLACEMENT} = {string_text(placement)}}}"
    if attrs.backend_config:
        texts["backend_config"] = string_text(attrs.backend_config)
    if called:
        names = ", ".join(f"@{quoted_symbol(name)}" for name in called)
        texts["called_computations"] = f"[{names}]"
    name = ("stablehlo", "custom_call")
    reader.emit(instruction, scope, name=name, attrs=attrs, attributes=listed(texts))


def top_k(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read ``topk``, which GPUs run as an equivalent library kernel."""
    attrs = CustomCallAttrs(target=TOP_K)
    texts = {
        "call_target_name": string_text(TOP_K),
        "k": integer_text(instruction.k),
        "largest": str(instruction.largest).lower(),
    }
    name = ("stablehlo", "custom_call")
    reader.emit(instruction, scope, name=name, attrs=attrs, attributes=listed(texts))


def while_loop(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read a ``while``; its configuration or condition and step give the trip count."""
    if len(instruction.called_computation_ids) != 2:
        raise ProgramError("a while has a body and a condition")
    body_number, condition_number = instruction.called_computation_ids
    condition, body = reader.block(condition_number), reader.block(body_number)
    operands = scope.operands(instruction)
    if len(operands) != len(body.arguments):
        raise ProgramError(
            f"a while of {len(operands)} values has {len(body.arguments)} in its body"
        )
    returned = body.operations[-1].operands
    if len(returned) != len(operands):
        raise ProgramError(f"the body of a while of {len(operands)} values has {len(returned)}")
    count = config.trip_count(instruction.backend_config)
    if count is None:
        count = trip_count(operands, condition, body, reader.producer)
    reader.emit(
        instruction,
        scope,
        name=("stablehlo", "while"),
        attrs=reader.overrides.loop(instruction.name, f"%{instruction.name}", count),
        regions=(condition, body),
        operands=operands,
    )


def conditional(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read a branch, whose alternatives use operands from the outer block."""
    index_id, *operands = instruction.operand_ids
    called = instruction.called_computation_ids
    if len(operands) != len(called):
        raise ProgramError(f"{len(called)} branches have {len(operands)} operands")
    branches = zip(called, operands, strict=True)
    regions = tuple([reader.branch(number, scope.tree(operand)) for number, operand in branches])
    (index,) = scope.values([index_id])
    is_predicate = isinstance(index.type, TensorType) and index.type.element.name == "i1"
    name = instruction.name
    attrs = reader.overrides.branch(name, f"%{name}", len(regions), is_predicate=is_predicate)
    reader.emit(
        instruction,
        scope,
        name=("stablehlo", "if" if is_predicate else "case"),
        attrs=attrs,
        regions=regions,
        operands=(index,),
    )


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(OPCODES, plain),
    "add-dependency": alias,
    "bitcast": bitcast,
    "call": call,
    "conditional": conditional,
    "constant": constant,
    "custom-call": custom_call,
    "fusion": fusion,
    "get-tuple-element": element,
    "topk": top_k,
    "tuple": tuple_of,
    "while": while_loop,
}
