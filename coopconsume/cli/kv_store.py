"""KIP-27's worked example: a replicated key-value store whose commit log is one Kafka partition.

Every process has all of the state. One of them leads: it decides each operation on the state it
has, writes what comes of it to the log, one batch in flight, and answers when that is in the log.
As it appends only directly behind what it has applied, and is fenced when another one leads, all
answers together are those of one store that does one thing after another.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from coopconsume.errors.fenced import ProducerBusy
from coopconsume.fenced.election import LeaderElection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.fenced.election import Leader
    from coopconsume.fenced.log import LogRecord


class KeyValueStore(LeaderElection):
    """One replica of a key-value store of texts.

    Operations work where this replica leads; elsewhere they raise `ProducerBusy`, which names the
    leader, and did nothing. An operation that raises `AppendOutcomeUnknown` may have happened, or
    not; one that raises `ProducerFenced` has not.

    The arguments are those of `LeaderElection`, without ``apply``.
    """

    def __init__(
        self, options: Mapping[str, Any], topic: str, partition: int = 0, **more: Any
    ) -> None:
        self._state: dict[str, str] = {}
        self._one_at_a_time = threading.Lock()
        super().__init__(options, topic, partition, apply=self._take, **more)

    def local(self) -> dict[str, str]:
        """The state as this replica has it, which may be the past."""
        return dict(self._state)

    def get(self, key: str) -> str | None:
        """The value of a key, None if it has none; never one from the past."""
        with self._one_at_a_time:
            self._leading().confirm()
            return self._state.get(key)

    def put(self, key: str, value: str) -> None:
        """Sets the value of a key."""
        with self._one_at_a_time:
            self._write(self._leading(), key, value)

    def delete(self, key: str) -> None:
        """Takes the value of a key away."""
        with self._one_at_a_time:
            self._write(self._leading(), key, None)

    def compare_and_set(self, key: str, expected: str | None, value: str) -> bool:
        """Sets a key if it has the expected value (None: none); returns whether it had it."""
        with self._one_at_a_time:
            leader = self._leading()
            leader.catch_up()
            if self._state.get(key) == expected:
                self._write(leader, key, value)
                return True
            # The answer must not come from an old state.
            leader.confirm()
            return False

    def _leading(self) -> Leader:
        leader = self.leader
        if leader is None:
            reason = "this replica does not lead; the log is held"
            raise ProducerBusy(*self._log, self.leader_name, reason)
        return leader

    def _write(self, leader: Leader, key: str, value: str | None) -> None:
        leader.append([(key.encode(), None if value is None else value.encode())])

    def _take(self, record: LogRecord) -> None:
        key = (record.key or b"").decode()
        if record.value is None:
            self._state.pop(key, None)
        else:
            self._state[key] = record.value.decode()
