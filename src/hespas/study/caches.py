"""Files of caches that a task used on another machine, brought to the one that asks.

A file stands under a key that is made of all that decides its content: exported, partitioned and
compiled programs, and prices. What one machine made serves every other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hespas.base.cache import ContentCache
from hespas.base.files import cache_home
from hespas.errors import CacheError

MOST_BYTES = 64 * 2**20
_NAME = re.compile(
    r"(?P<folder>compiled|exported|prices)/"
    r"(?P<key>[0-9a-f]{64})(?P<suffix>\.(?:compiled|exported|partitioned|prices))"
)


def names_of(files: Iterable[Path]) -> list[str]:
    """Return the names of files of the user's caches, in order; others have none.

    >>> names_of([cache_home() / "compiled" / f"{'0' * 64}.compiled", Path("/other")])[0][:10]
    'compiled/0'
    """
    home = cache_home()
    found = (str(each.relative_to(home)) for each in files if each.is_relative_to(home))
    return sorted(name for name in found if _NAME.fullmatch(name))


def contents_of(names: Iterable[str], *, most_bytes: int = MOST_BYTES) -> dict[str, bytes]:
    """Return what files of the user's caches hold; what would exceed ``most_bytes`` stays there.

    One that is gone meanwhile is left out.
    """
    found: dict[str, bytes] = {}
    left_bytes = most_bytes
    for name in names:
        with suppress(OSError):
            content = (cache_home() / name).read_bytes()
            if len(content) <= left_bytes:
                found[name] = content
                left_bytes -= len(content)
    return found


def keep(contents: Mapping[str, bytes]) -> None:
    """Put files into the user's caches, unless they are damaged or there; names decide where.

    Where a cache can't be used, none is kept.
    """
    for name, content in contents.items():
        named = _NAME.fullmatch(name)
        if named is None:
            continue
        mark, line_end, _ = content.partition(b"\n")
        cache = ContentCache(
            directory=cache_home() / named["folder"],
            suffix=named["suffix"],
            mark=mark + line_end,
            what="programs of studies",
        )
        with suppress(CacheError):
            cache.adopt(named["key"], content)
