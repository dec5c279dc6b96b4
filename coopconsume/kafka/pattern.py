"""The matching of topic names by ``subscribePattern``."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Prefix of internal topics of Kafka and its tools. No pattern matches them.
INTERNAL = "__"


@dataclass(frozen=True)
class TopicPattern:
    """A ``subscribePattern``.

    Args:
        text: A Python regular expression that matches whole names.
    """

    text: str

    def match(self, topic: str) -> bool:
        """Return whether the pattern matches a topic."""
        is_internal = topic.startswith(INTERNAL)
        return not is_internal and re.fullmatch(self.text, topic) is not None
