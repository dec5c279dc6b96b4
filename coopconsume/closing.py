"""Context managers: base classes, and one that raises an error as another one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable


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


class RaisedAs:
    """A context, for any number of blocks, that raises an error as another one.

    Args:
        other: Returns the error to raise instead; None leaves the one that was raised.
        drop: Called before the other error is raised, such as to close a connection.
    """

    def __init__(
        self, other: Callable[[Exception], Exception | None], drop: Callable[[], None] | None = None
    ) -> None:
        self._other = other
        self._drop = drop

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and (other := self._other(error)) is not None:
            try:
                if self._drop is not None:
                    self._drop()
                raise other from error
            finally:
                # Its traceback has this frame: the cycle would keep all that its frames refer to,
                # such as clients and their threads, until the garbage collector comes.
                del other, error
