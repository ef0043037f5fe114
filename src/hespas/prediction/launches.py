"""Launch waits of a device whose host launches each kernel.

Where nothing compiles a framework's modules and no CUDA graph holds them, Python launches kernels
one after another, ahead of the device as far as the device is slower. A host that needs a number
from the device waits until all before is done, and is not ahead from there on.

Transformer Engine multiplies the rows of each expert by themselves, and rounds them so: a product
of experts is a launch for each (2.11, ``module/grouped_linear.py``). Megatron-LM's host waits for
the counts of tokens before it launches the all-to-all that brings them (megatron-core 0.16.1,
``transformer/moe/token_dispatcher.py``: ``_maybe_dtoh_and_synchronize``). The gradient has the
counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from hespas.base.frozen import frozen
from hespas.models.software import software_named
from hespas.prediction.options import Fidelity, PredictOptions
from hespas.program.operations.traits import Category
from hespas.program.program import Op
from hespas.program.scopes import Named, Phase
from hespas.program.types import NumberKind, TensorType

_EXPERTS, _DISPATCH = "experts", "dispatch"
_SMALL_BITS = 8
_RANK = 3
"""Of rows by expert: the expert, its rows, and a row."""


def launches_each(options: PredictOptions) -> bool:
    """Return whether a host launches each kernel of passes."""
    software = options.program.model.software
    is_by_module = software is not None and software_named(software).runs_by_module
    return is_by_module and options.compile.requested is Fidelity.LIBRARY


@frozen
class Launch:
    """A task's launches by the host of its device.

    The task runs for ``duration_ps`` after ``count`` launches. With ``waits`` the host first waits
    for the device.
    """

    duration_ps: int
    count: int = 1
    waits: bool = False


def launch_of(op: Op, name: Named, duration_ps: int) -> Launch:
    """Return the launches of a kernel or a collective."""
    counts_tokens = name.phase is Phase.FORWARD and _DISPATCH in name.path
    return Launch(
        duration_ps=duration_ps,
        count=_experts(op) if _EXPERTS in name.path else 1,
        waits=counts_tokens and op.kind == "all_to_all",
    )


def _experts(op: Op) -> int:
    """Return how many experts an operation handles one by one."""
    result = op.results[0].type if op.results else None
    if not isinstance(result, TensorType) or result.rank < _RANK:
        return 1
    element = result.element
    is_rounded = element.kind is NumberKind.FLOAT and element.bits <= _SMALL_BITS
    return result.shape[0] if is_rounded or op.traits.category is Category.PRODUCT else 1


def launch_waits_ps(launches: Sequence[Launch], host_launch_ps: int) -> list[int]:
    """Return the device's wait before each task of a cycle.

    The host is as far ahead at its start as it is at its end.

    >>> short = Launch(duration_ps=1)
    >>> launch_waits_ps([short, short], 5)
    [4, 4]
    >>> launch_waits_ps([Launch(duration_ps=20), short, short], 5)
    [0, 0, 0]
    >>> launch_waits_ps([Launch(duration_ps=20), Launch(duration_ps=1, waits=True), short], 5)
    [4, 5, 4]
    """
    host_ps = device_ps = 0
    waited: list[int] = []
    for _ in range(2):
        waited = []
        for launch in launches:
            if launch.waits:
                host_ps = max(host_ps, device_ps)
            host_ps += launch.count * host_launch_ps
            waited.append(max(0, host_ps - device_ps))
            device_ps = max(device_ps, host_ps) + launch.duration_ps
    return waited
