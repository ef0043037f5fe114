"""Programs of models that differ in the sizes of two axes of their mesh alone.

The axes ``data`` and ``fsdp`` divide the sequences of a step between them. Before it is
partitioned, a program names them, and depends on how many parts both make together: which devices
hold the same weights is written in its mesh, and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hespas.errors import ProgramError
from hespas.models.catalogue import Llama2, Llama3
from hespas.models.language import LanguageModel, Training
from hespas.models.model import MeshAxes
from hespas.models.part import REDUCED
from hespas.sources.source import ModelSource

_MESH = re.compile(rb"^ *sdy\.mesh @mesh = .*$", re.MULTILINE)


def same_but_for_sizes(source: ModelSource) -> ModelSource:
    """Return what stands for all sources whose programs `on_mesh` makes of each other.

    >>> from hespas.sources.options import ModelOptions
    >>> from hespas.sources.source import find_source
    >>> from hespas.models.model import parse_mesh
    >>> options = ModelOptions(mesh=parse_mesh("data=2,fsdp=4,tp=2"))
    >>> same_but_for_sizes(find_source("llama3-8b", options, devices=16)).texts["mesh"]
    'data.fsdp.tp=8,tp=2'
    """
    settings, mesh = source.settings, source.mesh
    is_decoder = isinstance(settings, Llama2 | Llama3 | LanguageModel)
    if source.part is not None or not is_decoder or not set(REDUCED) <= set(mesh.names):
        return source
    match settings:
        case LanguageModel(run=Training(zero=1 | 2)):  # Gradients are each device's of data.
            return source
        case _:
            pass
    others = (f"{name}={size}" for name, size in mesh.axes if name not in REDUCED)
    alike = ",".join((f"{'.'.join(mesh.names)}={mesh.size(*REDUCED)}", *others))
    return replace(source, texts={**source.texts, "mesh": alike})


def on_mesh(text: bytes, mesh: MeshAxes, *, name: str) -> bytes:
    """Return a program's text with other sizes of the axes of its mesh.

    Raises `ProgramError` for a program that does not declare one mesh with these axes.

    >>> text = b'sdy.mesh @mesh = <["a"=2]> {axes = [{name = "a", size = 2 : i64}]}'
    >>> on_mesh(text, MeshAxes(axes=(("a", 8),)), name="").decode()
    'sdy.mesh @mesh = <["a"=8]> {axes = [{name = "a", size = 8 : i64}]}'
    """
    declared = _MESH.findall(text)
    if len(declared) != 1:
        raise ProgramError(f"it declares {len(declared)} meshes, and not one", location=name)
    changed: bytes = declared[0]
    for axis, size in mesh.axes:
        sizes = re.compile(rb'("%b"=|name = "%b", size = )\d+' % ((axis.encode(),) * 2))
        changed, count = sizes.subn(rb"\g<1>%d" % size, changed)
        if not count:
            raise ProgramError(f"its mesh has no axis {axis}", location=name)
    return text.replace(declared[0], changed)
