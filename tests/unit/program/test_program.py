from __future__ import annotations

import pytest
from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.program.kernels import CompiledKernels, KernelLaunch
from hespas.program.program import instructions_digest, with_kernels
from hlo_programs import read_hlo

LOOP = """HloModule step, is_scheduled=true

body {
  t = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[8] get-tuple-element(t), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  fusion.inside = f32[8] negate(x)
  ROOT r = (s32[], f32[8]) tuple(next, fusion.inside)
}

until {
  t = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(5)
  ROOT less = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  fusion.before = f32[8] negate(x)
  t = (s32[], f32[8]) tuple(zero, fusion.before)
  w = (s32[], f32[8]) while(t), condition=until, body=body
  ROOT y = f32[8] get-tuple-element(w), index=1
}
"""


def launching(*names: str, program: str = "") -> CompiledKernels:
    launches = [
        KernelLaunch(
            instruction=name, kernel="k", grid=(1, 1, 1), block=(128, 1, 1), shared_memory_bytes=0
        )
        for name in names
    ]
    return CompiledKernels(launches=tuple(launches), ptx={}, program=program)


def test_kernels_in_loops_are_the_programs_own() -> None:
    program = read_hlo(LOOP)
    own = launching("fusion.before", "fusion.inside", program=instructions_digest(program))
    assert with_kernels(program, own, location="k.json").kernels == own


def test_kernels_of_another_loop_are_refused() -> None:
    program = read_hlo(LOOP)
    other_program = read_hlo(LOOP.replace("fusion.inside", "fusion.other"))
    assert instructions_digest(other_program) != instructions_digest(program)
    for foreign in (
        launching("fusion.before", "fusion.other"),
        launching("fusion.before", program=instructions_digest(other_program)),
    ):
        with pytest.raises(ProgramError, match=r"k\.json: holds the kernels of another program"):
            with_kernels(program, foreign, location="k.json")


def test_what_is_scheduled_is_compiled_unless_a_model_made_it() -> None:
    program = read_hlo(LOOP)
    assert program.fidelity == "compiled"
    assert replace(program, is_modelled=True).fidelity == "fused"
    assert replace(program, is_scheduled=False).fidelity == "exported"
