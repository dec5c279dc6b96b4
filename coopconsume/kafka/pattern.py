"""Topics by pattern: which names a ``subscribePattern`` stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Topics of Kafka and of its tools, which no pattern matches.
INTERNAL = "__"


@dataclass(frozen=True)
class TopicPattern:
    """A ``subscribePattern``: the one rule for the start of a consumer and for its whole life.

    Args:
        text: A regular expression (Python's). It matches whole names.
    """

    text: str

    def match(self, topic: str) -> bool:
        """Returns whether the pattern stands for a topic."""
        is_internal = topic.startswith(INTERNAL)
        return not is_internal and re.fullmatch(self.text, topic) is not None
