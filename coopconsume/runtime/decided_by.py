"""Who made a decision, when and why, as the commit log and the marks of dead letters keep it."""

from __future__ import annotations

import getpass
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from coopconsume.errors import InvalidOption

#: Seconds between two reads of decisions by a job.
DECIDE_EVERY: Final = 2.0
#: The most characters of a name and of a reason.
MOST_NAME: Final = 100
MOST_REASON: Final = 300


@dataclass(frozen=True)
class DecidedBy:
    """Who made a decision, when and why.

    Attributes:
        name: The person or program; empty: it is not known, as for decisions of earlier versions.
        reason: Why; empty: none was given.
        at_ms: When, in milliseconds since 1970 by the clock of who decided; 0: not known.
    """

    name: str = ""
    reason: str = ""
    at_ms: int = 0

    @property
    def at(self) -> datetime | None:
        """When, as a time; None: not known."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC) if self.at_ms else None

    @classmethod
    def now(cls, name: str | None = None, reason: str = "") -> Self:
        """Returns who decides now, and why.

        Args:
            name: The person or program; by default the user of this process, and its host.
            reason: Why, in words.

        Raises:
            InvalidOption: The name is empty, or one of both is too long or is not text of one line
                that UTF-8 can hold.
        """
        chosen = operator_name() if name is None else name.strip()
        if not chosen:
            raise InvalidOption("by", repr(name), "give the name of who decides, or leave it out")
        _check("by", chosen, MOST_NAME)
        _check("reason", reason, MOST_REASON)
        return cls(chosen, reason, int(time.time() * 1000))

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.reason else self.name


def operator_name() -> str:
    """Returns the user of this process and its host, such as ``alice@db1``."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # The user id has no name, as in some containers.
        return f"operator@{socket.gethostname()}"


def _check(option: str, text: str, most: int) -> None:
    """Checks a text that is kept and shown."""
    if len(text) > most:
        remedy = f"it has {len(text):,} characters; give at most {most}"
        raise InvalidOption(option, repr(text[:20] + "…"), remedy)
    if not text.isprintable():  # A lone surrogate is not printable either.
        raise InvalidOption(option, repr(text), "give one line of printable text")
