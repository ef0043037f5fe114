"""The kernels of frameworks, as training settings.

Each record says what differs from the kernels that a compiler or Transformer Engine would make, and
who says so. A step is predicted with them by ``--software NAME``; settings that are given beside it
stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Literal

import msgspec

from hespas.base.configs import CONFIGS
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option

ARGUMENTS_PREFIX = "megatron:"
"""What a file of Megatron-LM's arguments is named with."""


@frozen
class Software:
    """A framework at a date: settings, and their sources.

    ``on_hopper`` are settings on Hopper alone, ``of_slow_experts`` those of models whose experts
    have biases or cut their activations off, ``of_scaled_rotation`` those of models whose rotation
    multiplies what it turns. ``runs_by_module`` says that no compiler joins the
    kernels of modules: PyTorch calls what a module has for a pass, and then the next one's.
    ``fsdp`` is the version of PyTorch's FSDP, whose copies are counted.
    ``scaled_whole`` are types of products whose operands are rounded by one scale each.
    ``full_remat`` is how its backward pass computes whole layers again. ``keeps_weights`` says that
    weights are whole on each device where states are divided, without stages too.
    """

    title: str
    settings: Mapping[str, str]
    sources: Mapping[str, str]
    on_hopper: Mapping[str, str] = field(default_factory=dict[str, str])
    of_slow_experts: Mapping[str, str] = field(default_factory=dict[str, str])
    of_scaled_rotation: Mapping[str, str] = field(default_factory=dict[str, str])
    full_remat: str = "full"
    keeps_weights: bool = False
    runs_by_module: bool = False
    fsdp: Literal[1, 2] | None = None
    scaled_whole: frozenset[str] = frozenset()
    scaled_whole_on_hopper: frozenset[str] = frozenset()

    def settings_for(
        self, *, is_hopper: bool, has_slow_experts: bool = False, scales_rotation: bool = False
    ) -> dict[str, str]:
        """Return the settings of a model on a part."""
        return {
            **self.settings,
            **(self.on_hopper if is_hopper else {}),
            **(self.of_slow_experts if has_slow_experts else {}),
            **(self.of_scaled_rotation if scales_rotation else {}),
        }

    def scales_tensors(self, types: Iterable[str], *, is_hopper: bool) -> bool:
        """Return whether products round each operand by one scale."""
        on_hopper = self.scaled_whole_on_hopper if is_hopper else frozenset[str]()
        return not (self.scaled_whole | on_hopper).isdisjoint(types)


SOFTWARE = msgspec.json.decode((CONFIGS / "software.json").read_bytes(), type=dict[str, Software])
"""Frameworks by name."""


def software_named(name: str) -> Software:
    """Return a framework by name.

    Raises `ConfigError` for an unknown one.

    >>> software_named("torchtitan-2024").settings_for(is_hopper=True)["attention"]
    'flash2'
    """
    if name not in SOFTWARE:
        raise ConfigError(f"{option('software')} is {name!r}", hint=suggestion(name, SOFTWARE))
    return SOFTWARE[name]
