"""Keep the last loaded programs, in a process that stays.

What a program becomes depends on its text, the part and the options of fusion, and not on the
network: an answer asked again, its tables, and a pipeline's parts on other meshes find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from hespas.base.cache import use_again, used_files
from hespas.base.frozen import frozen
from hespas.base.process import is_staying
from hespas.frontend.overrides import Loaded
from hespas.prediction.fidelity import Plan
from hespas.prediction.machines import device_of, made_directory, system_of
from hespas.prediction.options import Fidelity, NetworkOptions, PredictOptions
from hespas.prediction.workload import target_of

_MOST_PROGRAMS = 16


@frozen
class _Cause:
    """What decides a loaded program, and the function that loads it."""

    key: str
    load: Callable[[], Loaded] = field(compare=False)


def loaded_once(
    load: Callable[[], Loaded],
    content: bytes,
    plan: Plan,
    options: PredictOptions,
) -> Loaded:
    """Load a program, or return the one kept for equal causes.

    A kept one lacks the undivided program. Compiled programs have a cache of their own.
    """
    is_kept = is_staying() and made_directory(options.estimate) is not None
    if not is_kept or plan.fidelity is Fidelity.COMPILED:
        return load()
    loaded, used = _kept(_Cause(key=_key(content, plan, options), load=load))
    use_again(used)
    return loaded


@lru_cache(maxsize=_MOST_PROGRAMS)
def _kept(cause: _Cause) -> tuple[Loaded, frozenset[Path]]:
    with used_files() as used:
        loaded = cause.load()
    return replace(loaded, undivided=None), frozenset(used)


def _key(content: bytes, plan: Plan, options: PredictOptions) -> str:
    """Return a digest of what decides a loaded program.

    The mesh and the batch are in the content, and what files say of the part is in the device.
    """
    sized = replace(
        options.program.model,
        mesh=None,
        batch=None,
        global_batch=None,
        micro_batch=None,
        micro_batches=None,
    )
    reduced = replace(
        options, program=replace(options.program, model=sized), network=NetworkOptions()
    )
    system = system_of(options.network)
    host = system.dimensions[0].size if system and system.dimensions else None
    causes = (plan, reduced, device_of(options.estimate), target_of(options), host)
    return sha256(sha256(content).digest() + repr(causes).encode()).hexdigest()
