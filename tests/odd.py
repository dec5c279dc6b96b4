"""Odd errors that a handler may raise or return, for tests of all sizes."""

from __future__ import annotations

from coopconsume.record import Retry


class OddText:
    """An object whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class SlyText(str):
    """A text that is no plain `str`, and does not encode as one."""

    __slots__ = ()

    def encode(self, *_: object, **__: object) -> bytes:  # type: ignore[override]
        """Another one."""
        raise RuntimeError("no bytes")

    def __getitem__(self, _: object) -> str:
        raise RuntimeError("no parts")


class LengthlessText(str):
    """A text that raises when it is asked whether it is empty."""

    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("no length")


class LengthlessError(Exception):
    """An error with such a text."""

    def __str__(self) -> str:
        return LengthlessText("lengthless")


class OddTuple(tuple[Exception, ...]):
    """A tuple that cannot be read."""

    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("no length")


class OddGroup(ExceptionGroup[Exception]):
    """A group whose errors cannot be read."""

    @property
    def exceptions(self) -> tuple[Exception, ...]:  # type: ignore[override]
        """No errors."""
        return OddTuple()


class Silent(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class BytesText(Exception):
    """An error whose text is bytes."""

    def __str__(self) -> str:
        return b"bytes"  # type: ignore[return-value] # noqa: PLE0307 - that is odd


class OddCause(Exception):
    """An error whose attributes raise."""

    @property
    def __cause__(self) -> BaseException:
        raise RuntimeError("no cause")

    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError("no notes")


class Liar(Exception):
    """An error that raises when it is asked for its class."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("no class")


class BareRetry(Retry):
    """A Retry whose own beginning leaves out that of `Retry`."""

    def __init__(self) -> None:
        pass


class OddRetry(Retry):
    """A Retry whose attributes raise."""

    def __init__(self) -> None:
        pass

    @property
    def after(self) -> float:  # type: ignore[override]
        """No number."""
        raise RuntimeError("no number")

    @property
    def reason(self) -> str:  # type: ignore[override]
        """No text."""
        raise RuntimeError("no reason")


def _caused(depth: int) -> Exception:
    error: Exception = ValueError("root")
    for _ in range(depth):
        outer = ValueError("outer")
        outer.__cause__, error = error, outer
    return error


def _circular() -> Exception:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def _grouped(depth: int) -> Exception:
    error: Exception = ValueError("root")
    for _ in range(depth):
        error = ExceptionGroup("outer", [error, OSError("beside")])
    return error


def _noted() -> Exception:
    error = ValueError("noted")
    error.__notes__ = 7  # type: ignore[assignment]
    return error


def _changed(reason: object) -> Exception:
    error = Retry()
    error.reason = reason
    return error


#: Makers of errors, and what the text of each holds.
ODD_ERRORS = [
    (Silent, "Silent (its text cannot be shown)"),
    (BytesText, "BytesText"),
    (OddCause, "OddCause"),
    (Liar, ""),
    (LengthlessError, "LengthlessError: lengthless"),
    (lambda: OddGroup("odd", [ValueError("inner")]), "ValueError: inner"),
    (OddRetry, "OddRetry"),
    (BareRetry, "retry asked for"),
    (lambda: _changed(b"caf\xe9"), "caf\\xe9"),
    (lambda: _changed(OddText()), "Retry"),
    (lambda: _changed(ValueError("bad")), "ValueError: bad"),
    (lambda: ValueError("half \ud83d and \x00"), "half \\ud83d"),
    (lambda: ValueError(SlyText("sly")), "ValueError: sly"),
    (lambda: ValueError("x" * 5_000_000), "ValueError: xxx"),
    (lambda: ValueError(OddText()), "ValueError"),
    (lambda: _caused(500), "ValueError: outer"),
    (_circular, "ValueError: one"),
    (lambda: _grouped(30), "ExceptionGroup: outer"),
    (_noted, "noted"),
    (lambda: SystemExit(OddText()), "SystemExit"),
    (KeyboardInterrupt, "KeyboardInterrupt"),
    (GeneratorExit, "GeneratorExit"),
    (lambda: StopIteration(3), ""),
    (RecursionError, "RecursionError"),
    (MemoryError, "MemoryError"),
]
