from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.work.fusion import HostTraffic, host_traffic

D, H = "f32[4,8]{1,0}", "f32[4,8]{1,0:S(5)}"
SMALL, SMALL_ON_HOST = "f32[1,8]{1,0}", "f32[1,8]{1,0:S(5)}"
WHOLE_BYTES, SMALL_BYTES = 4 * 8 * 4, 8 * 4
HEADER = f"""HloModule m, is_scheduled=true

%updated (b: {H}, u: {SMALL}, i: s32[]) -> {H} {{
  %b = {H} parameter(0)
  %u = {SMALL} parameter(1)
  %i = s32[] parameter(2)
  %n = {SMALL} negate(%u)
  ROOT %r = {H} dynamic-update-slice(%b, %n, %i, %i)
}}

%cut (b: {H}, i: s32[]) -> {SMALL} {{
  %b = {H} parameter(0)
  %i = s32[] parameter(1)
  %s = {SMALL} dynamic-slice(%b, %i, %i), dynamic_slice_sizes={{1,8}}
  ROOT %r = {SMALL} negate(%s)
}}

ENTRY %main (d: {D}, h: {H}, u: {SMALL}, v: {SMALL_ON_HOST}, i: s32[]) -> RESULT {{
  %d = {D} parameter(0)
  %h = {H} parameter(1)
  %u = {SMALL} parameter(2)
  %v = {SMALL_ON_HOST} parameter(3)
  %i = s32[] parameter(4)
  ROOT %o = RESULT OPERATION
}}
"""


@pytest.mark.parametrize(
    ("result", "operation", "to_host", "from_host"),
    [
        (H, "copy(%d)", WHOLE_BYTES, 0),
        (D, "copy(%h)", 0, WHOLE_BYTES),
        (H, "copy(%h)", 0, 0),
        (D, "copy(%d)", 0, 0),
        (H, "dynamic-update-slice(%h, %u, %i, %i)", SMALL_BYTES, 0),
        (H, "dynamic-update-slice(%h, %v, %i, %i)", 0, 0),
        (SMALL, "dynamic-slice(%h, %i, %i), dynamic_slice_sizes={1,8}", 0, SMALL_BYTES),
        (SMALL_ON_HOST, "dynamic-slice(%h, %i, %i), dynamic_slice_sizes={1,8}", 0, 0),
        (H, "fusion(%h, %u, %i), kind=kLoop, calls=%updated", SMALL_BYTES, 0),
        (SMALL, "fusion(%h, %i), kind=kLoop, calls=%cut", 0, SMALL_BYTES),
        (D, "add(%d, %h)", 0, WHOLE_BYTES),
        (H, 'custom-call(), custom_call_target="AllocateBuffer"', 0, 0),
        (H, "bitcast(%h)", 0, 0),
    ],
)
def test_what_crosses_between_the_spaces_is_counted(
    result: str, operation: str, to_host: int, from_host: int
) -> None:
    source = HEADER.replace("RESULT", result).replace("OPERATION", operation)
    program = load_source(source.encode(), name="m")
    op = next(
        candidate for candidate in program.main.body.operations if candidate.instruction == "o"
    )
    traffic = host_traffic(op)
    assert traffic == HostTraffic(to_host_bytes=to_host, from_host_bytes=from_host)
    assert bool(traffic) == (to_host + from_host > 0)
