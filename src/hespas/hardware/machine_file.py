"""``machine`` of ``network.json``: a description of a real machine, and what it does not say."""

from __future__ import annotations

from msgspec import Struct

from hespas.base.figures import NotNegative, Positive, Text


class LinkFigures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link of infragraph in one direction; its latency is the file's where it is left out."""

    bandwidth_bytes_per_s: Positive
    latency_s: NotNegative | None = None


class MachineFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that NCCL or hwloc wrote (XML), or one of infragraph (YAML, JSON).

    ``link_latency_s`` is that of each link of which the file does not say it. Of XML, the
    bandwidths are of one NVLink, and of the link from one socket to another, in one direction. Of
    infragraph, ``links`` has links by name, and those of ``leave_out_links`` carry no messages.
    """

    file: Text
    link_latency_s: NotNegative | None = None
    nvlink_bandwidth_bytes_per_s: Positive | None = None
    socket_bandwidth_bytes_per_s: Positive | None = None
    links: dict[Text, LinkFigures] = {}
    leave_out_links: tuple[Text, ...] = ()
