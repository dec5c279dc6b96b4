"""Base classes of context managers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Whatever has a ``close()`` that a ``with`` block is to call, however it ends."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Acquired(Closing):
    """Acquired at the start of a ``with`` block, closed at its end or if acquiring fails."""

    @abstractmethod
    def acquire(self) -> Self:
        """Acquire it; nothing if that is done."""

    def __enter__(self) -> Self:
        try:
            return self.acquire()
        except BaseException:
            self.close()
            raise
