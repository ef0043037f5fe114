"""The attributes of HLO collectives: every spelling of replica groups."""

from __future__ import annotations

from typing import Any

from hespas.errors import ProgramError
from hespas.frontend.hlo import mlir
from hespas.frontend.hlo.config import collective_kernel
from hespas.frontend.meshes import AxisPart, Mesh, axis_groups
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs
from hespas.program.groups import FoldedGroups, GroupMode, ListedGroups, ReplicaGroups

_BOTH_WITH_CHANNEL = frozenset({"all-gather", "all-reduce", "reduce-scatter"})
"""For these a channel means groups of replicas and partitions, for the others of partitions."""


def replica_groups(instruction: Any) -> ReplicaGroups:
    """Read the groups of a collective: listed, an iota folded and transposed, or mesh axes.

    Source of the spellings: openxla/xla, ``xla/hlo/ir/replica_group.h``.
    """
    if instruction.HasField("mesh_axes_replica_group_list"):
        return _mesh_axes(instruction.mesh_axes_replica_group_list)
    if instruction.HasField("iota_collective_device_list"):
        return _iota(instruction.iota_collective_device_list)
    listed = instruction.collective_device_list.replica_groups or instruction.replica_groups
    return ListedGroups(groups=tuple(tuple(group.replica_ids) for group in listed))


def _iota(folded: Any) -> FoldedGroups:
    dimensions = tuple(folded.iota_reshape_dims)
    if not dimensions:
        dimensions = (folded.num_replica_groups, folded.num_devices_per_group)
    permutation = tuple(folded.iota_transpose_perm) or tuple(range(len(dimensions)))
    return FoldedGroups(
        dimensions=dimensions,
        permutation=permutation,
        group_size=folded.num_devices_per_group,
    )


def _mesh_axes(described: Any) -> ReplicaGroups:
    axes: tuple[tuple[str, int], ...] = tuple(
        (axis.name, axis.size) for axis in described.mesh.axes
    )
    mesh = Mesh(axes=axes, device_ids=_device_ids(described.mesh))
    used: list[AxisPart] = []
    for reference in described.axes:
        index: int = reference.mesh_axis_index
        if not 0 <= index < len(axes):
            raise ProgramError(f"mesh axis {index} is not defined")
        name, whole = axes[index]
        part = reference.sub_axis_info
        divided = reference.HasField("sub_axis_info")
        before, size = (part.pre_size, part.size) if divided else (1, whole)
        used.append(AxisPart(name=name, before=before, size=size))
    return axis_groups(mesh, used)


def _device_ids(mesh: Any) -> tuple[int, ...] | None:
    if mesh.device_ids:
        return tuple(mesh.device_ids)
    if not mesh.HasField("iota_transform"):
        return None
    transform = mesh.iota_transform
    dimensions = tuple(transform.reshape_dims)
    folded = FoldedGroups(
        dimensions=dimensions,
        permutation=tuple(transform.transpose_perm) or tuple(range(len(dimensions))),
        group_size=1,
    )
    return tuple(row[0] for row in folded.listed())


def group_mode(instruction: Any, opcode: str) -> GroupMode:
    """Return what the numbers in the groups mean.

    Source: openxla/xla, ``GetCollectiveOpGroupMode``, and the StableHLO specification, section
    "Process groups".
    """
    if instruction.use_global_device_ids:
        return GroupMode.FLATTENED_IDS
    if instruction.channel_id <= 0:
        return GroupMode.CROSS_REPLICA
    if opcode in _BOTH_WITH_CHANNEL:
        return GroupMode.CROSS_REPLICA_AND_PARTITION
    return GroupMode.CROSS_PARTITION


_DIMENSION_NAMES = {
    "all-gather": "all_gather_dim",
    "all-to-all": "split_dimension",
    "reduce-scatter": "scatter_dimension",
}


def read_collective(instruction: Any, opcode: str) -> tuple[CollectiveAttrs, mlir.Attributes]:
    """Read a collective with groups; ``opcode`` is its name without ``-start``."""
    named = instruction.dimensions if opcode in _DIMENSION_NAMES else ()
    return collective_of(instruction, opcode, named[0] if named else None)


def collective_of(
    instruction: Any, opcode: str, dimension: int | None
) -> tuple[CollectiveAttrs, mlir.Attributes]:
    """Return the attributes of a collective among an instruction's groups."""
    groups, mode = replica_groups(instruction), group_mode(instruction, opcode)
    attrs = CollectiveAttrs(
        groups=groups,
        mode=mode,
        channel=instruction.channel_id if instruction.channel_id > 0 else None,
        dimension=dimension,
        kernel=collective_kernel(instruction.backend_config) if opcode == "all-reduce" else "",
    )
    texts = {"replica_groups": _groups_text(groups)}
    if dimension is not None:
        texts[_DIMENSION_NAMES[opcode]] = mlir.integer(dimension)
    if opcode == "all-to-all" and dimension is not None:
        texts["concat_dimension"] = mlir.integer(dimension)
        texts["split_count"] = mlir.integer(group_size(groups))
    if mode is GroupMode.FLATTENED_IDS:
        texts["use_global_device_ids"] = "unit"
    return attrs, mlir.listed(texts)


def group_size(groups: ReplicaGroups) -> int:
    """Return the size of the largest group; 0 if one group holds all devices."""
    match groups:
        case ListedGroups(groups=listed):
            return max(map(len, listed), default=0)
        case FoldedGroups(group_size=size):
            return size


def _groups_text(groups: ReplicaGroups) -> str:
    """Print groups; folded ones stay folded, so that a million devices are not listed."""
    match groups:
        case ListedGroups(groups=listed):
            width = max(map(len, listed), default=0)
            padded = [(*group, *(-1,) * (width - len(group))) for group in listed]
            return mlir.rows(padded, width)
        case FoldedGroups(dimensions=dimensions, permutation=permutation, group_size=size):
            return f'"{list(dimensions)}T{list(permutation)} in {size}"'


def read_permute(instruction: Any, opcode: str) -> tuple[PermuteAttrs, mlir.Attributes]:
    """Read a collective permute."""
    pairs = tuple((pair.source, pair.target) for pair in instruction.source_target_pairs)
    attrs = PermuteAttrs(
        pairs=pairs,
        mode=group_mode(instruction, opcode),
        channel=instruction.channel_id if instruction.channel_id > 0 else None,
    )
    return attrs, (("source_target_pairs", mlir.rows(pairs)),)
