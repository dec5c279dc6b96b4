"""Sequence number of the last record of each key in a log, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, ClassVar

import xxhash
from pyroaring import BitMap64

if TYPE_CHECKING:
    from collections.abc import Iterable


class KeyIndex:
    """The last numbers of the ``remembered`` keys written last, and a hash of each other key."""

    remembered: ClassVar[int] = 100_000

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, int] = OrderedDict()
        self._hashes = BitMap64()

    def add(self, keys: Iterable[bytes | None], first_seq: int) -> None:
        """Takes in records in their order, the first one with a sequence number."""
        last = self._last
        for seq, key in enumerate(keys, first_seq):
            if key is not None:
                last[key] = seq
                last.move_to_end(key)
        while len(last) > self.remembered:
            key, _ = last.popitem(last=False)
            self._hashes.add(xxhash.xxh64_intdigest(key))

    def last_seq(self, key: bytes) -> int | None:
        """The last record of a key, or None; `LookupError` if its number is not kept any more."""
        found = self._last.get(key)
        if found is None and xxhash.xxh64_intdigest(key) in self._hashes:
            raise LookupError(key)
        return found
