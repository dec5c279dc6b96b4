"""The incarnations of a log: one for each time that its topic was created, or that it was cut."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogIncarnation:
    """An incarnation of the log of a partition. The same offset of another one is another record.

    Attributes:
        topic_id: The id of the topic, as text; empty if it is not known.
        cut: The first leader epoch that was seen after the log was cut last; 0: it never was.
    """

    topic_id: str = ""
    cut: int = 0


#: What rows of earlier versions are about.
NOT_KNOWN = LogIncarnation()
