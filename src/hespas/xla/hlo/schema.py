"""Build HLO's protobuf classes from jaxlib's schema.

jaxlib has no Python classes for ``xla/service/hlo.proto``, but its library embeds the compiled file
descriptors. ``schema.binpb`` beside this file holds them, so that reading a program does not search
a library of 330 MB. ``validation/hlo_schema.py`` writes it.

Source of the schema: openxla/xla, ``xla/service/hlo.proto``, ``xla/service/metrics.proto`` and
``xla/xla_data.proto``, Apache License 2.0.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SCHEMA_FILE = Path(__file__).with_name("schema.binpb")
_WELL_KNOWN = (any_pb2, duration_pb2, timestamp_pb2)


@lru_cache(maxsize=8)
def message_class(name: str) -> Any:
    """Return the class of a message, such as ``xla.HloModuleProto``."""
    return GetMessageClass(_pool().FindMessageTypeByName(name))


@lru_cache(maxsize=8)
def enum_names(name: str) -> dict[int, str]:
    """Return the names of an enumeration's values by number."""
    values = _pool().FindEnumTypeByName(name).values_by_number
    return {number: value.name for number, value in values.items()}


@lru_cache(maxsize=1)
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for module in _WELL_KNOWN:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in FileDescriptorSet.FromString(SCHEMA_FILE.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool
