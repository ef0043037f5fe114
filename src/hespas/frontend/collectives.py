"""Readers of what moves data between devices: who takes part, and along which dimension."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hespas.frontend.meshes import Mesh, read_axis_groups
from hespas.frontend.records import Reader, integer, required
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs
from hespas.program.groups import GroupMode, ListedGroups, ReplicaGroups
from hespas.xla.mlir_functions import OpRecord
from hespas.xla.mlir_text import read_integer, read_rows

_HANDLE = re.compile(r"handle = (-?\d+)")


def _channel(record: OpRecord) -> int | None:
    text = record.attributes.get("channel_handle")
    if text is not None:
        match = _HANDLE.search(text)
        handle = int(match[1]) if match else 0
        return handle if handle > 0 else None
    return integer(record, "channel_id", 0) or None


def _groups(
    record: OpRecord, meshes: Mapping[str, Mesh], with_channel: GroupMode
) -> tuple[ReplicaGroups, GroupMode, int | None]:
    """Read the groups and what their numbers mean (StableHLO, "Process groups")."""
    channel = _channel(record)
    text = required(record, "replica_groups")
    if not text.startswith("dense"):
        return read_axis_groups(text, meshes), GroupMode.FLATTENED_IDS, channel
    rows = tuple(tuple(at for at in row if at >= 0) for row in read_rows(text))
    groups = ListedGroups(groups=tuple(row for row in rows if row))
    if "use_global_device_ids" in record.attributes:
        return groups, GroupMode.FLATTENED_IDS, channel
    return groups, GroupMode.CROSS_REPLICA if channel is None else with_channel, channel


def _collective(
    meshes: Mapping[str, Mesh], dimension: str | None, with_channel: GroupMode
) -> Reader:
    def read(record: OpRecord) -> CollectiveAttrs:
        groups, mode, channel = _groups(record, meshes, with_channel)
        return CollectiveAttrs(
            groups=groups,
            mode=mode,
            channel=channel,
            dimension=None if dimension is None else read_integer(required(record, dimension)),
        )

    return read


def _permute(record: OpRecord) -> PermuteAttrs:
    channel = _channel(record)
    pairs = read_rows(required(record, "source_target_pairs"))
    return PermuteAttrs(
        pairs=tuple((source, target) for source, target in pairs),
        mode=GroupMode.CROSS_REPLICA if channel is None else GroupMode.CROSS_PARTITION,
        channel=channel,
    )


def collective_readers(meshes: Mapping[str, Mesh]) -> dict[str, Reader]:
    """Return the reader of every operation kind that moves data between devices."""
    both = GroupMode.CROSS_REPLICA_AND_PARTITION
    partition = GroupMode.CROSS_PARTITION
    return {
        "all_gather": _collective(meshes, "all_gather_dim", both),
        "all_reduce": _collective(meshes, None, both),
        "all_to_all": _collective(meshes, "split_dimension", partition),
        "collective_broadcast": _collective(meshes, None, partition),
        "collective_permute": _permute,
        "cross-replica-sum": _collective(meshes, None, both),
        "reduce_scatter": _collective(meshes, "scatter_dimension", both),
    }
