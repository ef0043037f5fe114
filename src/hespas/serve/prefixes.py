"""Prefixes that requests share, and what a replica keeps of them.

A prompt is a chain of segments, each with a number and the token where it ends: equal numbers
behind equal chains are equal tokens. A replica keeps segments that it has computed, in whole
blocks, as long as no request needs their blocks. The least recently used go first, and of one chain
the last.

Sources: vLLM, "Automatic Prefix Caching" (docs/design/prefix_caching.md): blocks are freed in the
reverse order of their chain, the least recently used first, and the last token of a prompt is
always computed; Zheng et al., SGLang, 2024: a radix tree of prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

Chain = Sequence[tuple[int, int]]
"""Segments of a prompt: the number of each, and the token where it ends."""


@dataclass(slots=True, eq=False)
class Node:
    """A segment that a replica keeps behind others, with its users."""

    parent: Node | None
    number: int
    end: int
    blocks: int
    depth: int
    users: int = 0
    used_at: int = 0
    children: dict[int, Node] = field(default_factory=dict[int, "Node"])


class PrefixCache:
    """The cached segments of a replica."""

    __slots__ = ("_block_tokens", "_clock", "_root", "_unused", "unused_blocks")

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._root = Node(parent=None, number=-1, end=0, blocks=0, depth=0)
        self._clock = 0
        self._unused: list[tuple[int, int, Node]] = []
        self.unused_blocks = 0

    def match(self, chain: Chain, most_tokens: int) -> list[Node]:
        """Return a chain's cached segments within ``most_tokens``."""
        node, matched = self._root, list[Node]()
        for number, end in chain:
            child = node.children.get(number)
            if child is None or child.end != end or end > most_tokens:
                break
            matched.append(child)
            node = child
        return matched

    def tokens_of(self, nodes: Sequence[Node]) -> int:
        """Return the tokens of the whole blocks of matched segments."""
        return nodes[-1].end // self._block_tokens * self._block_tokens if nodes else 0

    def take(self, nodes: Sequence[Node]) -> int:
        """Use segments; return how many of their blocks were unused before."""
        revived = 0
        for node in nodes:
            if not node.users:
                revived += node.blocks
            node.users += 1
        self.unused_blocks -= revived
        return revived

    def insert(self, nodes: list[Node], chain: Chain) -> int:
        """Cache a chain behind its used segments; return added blocks.

        Segments that another request computed meanwhile end it: their blocks are there twice.
        """
        added = 0
        node = nodes[-1] if nodes else self._root
        for number, end in chain[len(nodes) :]:
            if number in node.children:
                break
            size = self._block_tokens
            child = Node(
                parent=node,
                number=number,
                end=end,
                blocks=end // size - node.end // size,
                depth=node.depth + 1,
                users=1,
            )
            node.children[number] = child
            nodes.append(child)
            added += child.blocks
            node = child
        return added

    def leave(self, nodes: Sequence[Node]) -> int:
        """Release segments; return how many blocks become unused."""
        self._clock += 1
        freed = 0
        for node in nodes:
            node.users -= 1
            if not node.users:
                freed += node.blocks
                node.used_at = self._clock
                # Of one chain the last segment goes first.
                heappush(self._unused, (self._clock, -node.depth, node))
        self.unused_blocks += freed
        return freed

    def shrink_to(self, blocks: int) -> None:
        """Drop unused segments until they hold at most a number of blocks."""
        while self.unused_blocks > blocks:
            used_at, _, node = heappop(self._unused)
            if node.users or node.used_at != used_at or node.parent is None:
                continue
            del node.parent.children[node.number]
            node.parent = None
            self.unused_blocks -= node.blocks
