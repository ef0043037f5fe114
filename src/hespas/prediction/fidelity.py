"""Choose what is priced where the user leaves it open.

`planned` decides before anything expensive is done, and says why a program is not compiled.
"""

from __future__ import annotations

import re

from hespas.base.fields import changed, changed_options, refuse_unused
from hespas.base.frozen import frozen
from hespas.compile.options import COMBINING, COMPILER, PIPELINING
from hespas.errors import ConfigError, HardwareError, ToolError, option, spelled
from hespas.hardware.device import Device, NodeHardware
from hespas.hardware.presets import load_device, part_of
from hespas.prediction.options import EstimateOptions, Fidelity, PredictOptions
from hespas.price.methods import DeviceUse, method_named
from hespas.program.recorded import is_recorded
from hespas.split.options import SplitStrategy
from hespas.xla.hlo.forms import is_hlo

WITHOUT_COMPILER = Fidelity.FUSED
"""The fidelity where nothing compiles the program."""

_ABSENT = {
    Fidelity.FUSED: (COMPILER,),
    Fidelity.LIBRARY: (COMPILER, COMBINING),
    Fidelity.EXPORTED: (COMPILER, COMBINING, PIPELINING),
}
"""The uses of compile options that a fidelity lacks."""
_LINE = re.compile(r"[0-9]+")


@frozen
class Plan:
    """The treatment of a program that is read.

    ``fidelity`` is never `Fidelity.AUTO`; None takes the program as it is given. ``node`` is the
    part to compile for. ``reason`` says why a program is not compiled, where nobody asked for
    that. ``may_fall_back``: a program that the compiler refuses is not an error.
    """

    fidelity: Fidelity | None
    node: str = ""
    reason: str = ""
    may_fall_back: bool = False

    @property
    def note(self) -> str:
        """The assumption that states the reason, if any."""
        text = f"the program is not compiled first: {self.reason}" if self.reason else ""
        return spelled(text, str)


def planned(source: bytes, options: PredictOptions) -> Plan:
    """Plan what is done to a program.

    ``source`` is the content of its file. HLO and recorded steps of PyTorch are not compiled again.
    StableHLO is compiled on request, or where it may be and the node's compiler is installed.
    Raises `ConfigError` for options without effect, and for a compilation without a node.

    >>> planned(b"module {}", PredictOptions()).note
    'the program is not compiled first: no node is given'
    >>> planned(b"HloModule step, is_scheduled=true", PredictOptions()).fidelity is None
    True
    """
    choice = options.compile
    of_compiler = changed(choice.options)
    file = str(options.program.file or "")
    if is_hlo(source) or is_recorded(source):
        already = "HLO already" if is_hlo(source) else "a recorded step of PyTorch"
        absent = dict.fromkeys(_ABSENT[Fidelity.EXPORTED], f"a program that is {already}")
        refuse_unused(choice.options, absent, location=file)
        is_unchanged = choice.requested in {None, Fidelity.AUTO, Fidelity.COMPILED}
        return Plan(fidelity=None if is_unchanged else choice.requested)
    match choice.requested:
        case Fidelity.COMPILED:
            return Plan(fidelity=Fidelity.COMPILED, node=_node_for(choice.words, options))
        case Fidelity.AUTO if of_compiler:
            plan = _automatic(options)
            needs_compiler = any(
                COMPILER in field.applies_to for field, _ in changed_options(choice.options)
            )
            if plan.fidelity is WITHOUT_COMPILER and not needs_compiler:
                return plan
            return Plan(fidelity=Fidelity.COMPILED, node=_node_for(option(of_compiler[0]), options))
        case Fidelity.AUTO:
            return _automatic(options)
        case _:
            absent = dict.fromkeys(_ABSENT[choice.requested or Fidelity.EXPORTED], choice.words)
            refuse_unused(choice.options, absent, location=file)
            return Plan(fidelity=choice.requested)


def fallen_back(reason: str) -> Plan:
    """Return the plan for a program that can't be compiled."""
    return Plan(fidelity=WITHOUT_COMPILER, reason=reason)


def _node_for(words: str, options: PredictOptions) -> str:
    node = _node_name(options.estimate)
    if node is None:
        raise ConfigError(
            f"{words} compiles for a node", hint=f"give {option('node')}, a preset's name"
        )
    return node


def _automatic(options: PredictOptions) -> Plan:
    if options.program.kernels is not None:
        return Plan(fidelity=None)
    reason = needs_operations(options)
    if reason:
        return Plan(fidelity=Fidelity.EXPORTED, reason=reason)
    node, estimate = _node_name(options.estimate), options.estimate
    if node is None:
        is_described = estimate.node or estimate.hardware or estimate.peak_flops
        return fallen_back("its node is no preset" if is_described else "no node is given")
    reason = _by_line(options) or why_not_compiled(node)
    if reason:
        return fallen_back(reason)
    return Plan(fidelity=Fidelity.COMPILED, node=node, may_fall_back=True)


def needs_operations(options: PredictOptions) -> str:
    """Return why exported operations are needed, or ""."""
    method = options.estimate.method
    if method is not None and method_named(method).device_use is not DeviceUse.NEEDED:
        return f"method {method} runs its operations as they are exported"
    cut = [name for name in changed(options.split) if name != "split_fn"]
    if options.split.strategy is SplitStrategy.INDIVIDUAL:
        cut.append("split_fn")
    return f"{option(cut[0])} divides its operations as they are exported" if cut else ""


def _by_line(options: PredictOptions) -> str:
    """Return the option that names the program's lines, or ""."""
    options_by_line = {
        "trip_count": options.program.trip_counts,
        "branch_weights": options.program.branch_weights,
    }
    for name, values in options_by_line.items():
        if any(_LINE.fullmatch(key) for key in values):
            return f"{option(name)} names a line of it"
    return ""


def why_not_compiled(node: str) -> str:
    """Return why nothing compiles for a node, or "".

    ``node`` is a preset's name, or a path.
    """
    # Programs that are compiled already need not wait for it.
    from hespas.compile.packages import compiler_versions  # noqa: PLC0415
    from hespas.compile.targets import find_target  # noqa: PLC0415

    try:
        load_device(node)
        compiler_versions(find_target(node))
    except HardwareError as error:
        return error.message
    except ToolError as error:
        return f"{error.message} ({error.hint})"
    return ""


def _node_name(options: EstimateOptions) -> str | None:
    """Return the node's name or path, if it has one."""
    node = options.node
    if node is None and isinstance(options.hardware, NodeHardware):
        node = options.hardware.node
    if isinstance(node, Device):
        return part_of(node)
    return None if node is None else str(node)
