"""A small scheduled program, as a GPU's compiler writes it, and how tests read it."""

from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.program.devices import with_device_count
from hespas.program.program import Program

V = "f32[256]"

HEADER = """HloModule step, is_scheduled=true, num_partitions=4{aliases}

%fused (p: f32[256]) -> f32[256] {{
  %p = f32[256] parameter(0)
  ROOT %n = f32[256] reverse(%p), dimensions={{0}}
}}

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}}

%below (c: (s32[], f32[256])) -> pred[] {{
  %c = (s32[], f32[256]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %end = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}}
{functions}
ENTRY %main (a: f32[256]) -> {result} {{
  %a = f32[256] parameter(0)
{body}
}}
"""
GROUPS = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add"


def kernel(name: str, operand: str) -> str:
    """Return a fusion that reads and makes a vector."""
    return f"%{name} = {V} fusion(%{operand}), kind=kLoop, calls=%fused"


def start(name: str, operand: str) -> str:
    """Return the start of an all-reduce of a vector."""
    return f"%{name} = {V} all-reduce-start(%{operand}), {GROUPS}"


def done(name: str, operand: str) -> str:
    """Return the end of an all-reduce of a vector."""
    return f"%{name} = {V} all-reduce-done(%{operand})"


def sync(name: str, operand: str) -> str:
    """Return an all-reduce for which the compute stream waits."""
    return f"%{name} = {V} all-reduce(%{operand}), {GROUPS}"


def loop(name: str, operand: str, *body: str, count: int | None = 3) -> tuple[str, tuple[str, ...]]:
    """Return the functions of a loop over a vector, ``%v`` to ``%w``, and the lines that run it."""
    lines = "\n".join(f"  {line}" for line in body)
    function = f"""
%body_{name} (c: (s32[], {V})) -> (s32[], {V}) {{
  %c = (s32[], {V}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %v = {V} get-tuple-element(%c), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
{lines}
  ROOT %back = (s32[], {V}) tuple(%next, %w)
}}
"""
    known = "" if count is None else f', backend_config={{"known_trip_count":{{"n":"{count}"}}}}'
    calls = f"condition=%below, body=%body_{name}"
    return function, (
        f"%zero_{name} = s32[] constant(0)",
        f"%in_{name} = (s32[], {V}) tuple(%zero_{name}, %{operand})",
        f"%out_{name} = (s32[], {V}) while(%in_{name}), {calls}{known}",
        f"%{name} = {V} get-tuple-element(%out_{name}), index=1",
    )


def scheduled_text(*lines: str, functions: str = "", aliases: str = "") -> str:
    """Return a program of such lines, the last of which makes the result, for four devices."""
    *before, last = lines
    body = "\n".join([*(f"  {line}" for line in before), f"  ROOT {last}"])
    return HEADER.format(
        functions=functions,
        body=body,
        aliases=f", input_output_alias={aliases}" if aliases else "",
        result=last.split(" = ")[1].split()[0],
    )


def scheduled(*lines: str, functions: str = "", aliases: str = "") -> Program:
    """Read such a program."""
    text = scheduled_text(*lines, functions=functions, aliases=aliases)
    return with_device_count(
        load_source(text.encode(), name="step.hlo"), requested=None, system=None
    )
