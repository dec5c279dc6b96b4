"""An attempt of a poll while brokers or the commit table may be away."""

from __future__ import annotations

import logging

from commits import CommitLogUnavailable
from coopconsume.errors import BrokerUnreachable

log = logging.getLogger(__name__)


class PollAttempt:
    """Passes over errors of a poll's attempt that say that brokers or commit table are away.

    Attributes:
        error: The error of the last attempt, if there was one.
    """

    error: BrokerUnreachable | CommitLogUnavailable | None = None

    def __enter__(self) -> None:
        self.error = None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, BrokerUnreachable | CommitLogUnavailable):
            return False
        self.error = error
        log.warning("%s; trying again", error)
        return True
