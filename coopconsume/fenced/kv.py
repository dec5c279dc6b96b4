"""KIP-27's worked example: a replicated key-value store whose commit log is one Kafka partition.

Every process has all of the state. One of them leads: it decides each operation on the state it
has, writes what comes of it to the log, one batch in flight, and answers when that is in the log.
As it appends only directly behind what it has applied, and is fenced when another one leads, all
answers together are those of one store that does one thing after another.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from coopconsume.closing import Closing
from coopconsume.errors.fenced import ProducerBusy
from coopconsume.fenced.election import LeaderElection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coopconsume.fenced.election import Leader
    from coopconsume.fenced.log import LogRecord


class KeyValueStore(Closing):
    """One replica of a key-value store of texts.

    Operations work where this replica leads; elsewhere they raise `ProducerBusy`, which names the
    leader, and did nothing. An operation that raises `AppendOutcomeUnknown` may have happened, or
    not; one that raises `ProducerFenced` has not.

    Example:
        >>> with KeyValueStore({"kafka.bootstrap.servers": "localhost:9092"}, "seats") as seats:
        ...     seats.lead()
        ...     seats.compare_and_set("12A", None, "anna")

    Args:
        options, topic, partition: As for `LeaderElection`.
        on_elected: Called with the epoch when this replica leads, its state complete.
        on_lost: Called when it leads no more.
        **more: As for `LeaderElection`, such as ``store``, ``owner`` and ``lease``.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        partition: int = 0,
        *,
        on_elected: Callable[[int], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        **more: Any,
    ) -> None:
        self._state: dict[str, str] = {}
        self._one_at_a_time = threading.Lock()
        self._log = topic, partition
        notify = on_elected or (lambda _: None)
        self._election = LeaderElection(
            options, topic, partition, apply=self._take,
            on_elected=lambda leader: notify(leader.epoch), on_lost=on_lost, **more,
        )  # fmt: skip

    @property
    def leader_name(self) -> str | None:
        """The name of the replica that leads, by the registry."""
        return self._election.leader_name

    @property
    def leads(self) -> bool:
        """Whether this replica leads, as far as it knows."""
        return self._election.leader is not None

    def start(self) -> Self:
        """Begins to follow the log, and to stand for election."""
        self._election.start()
        return self

    def lead(self, timeout: float | None = None) -> Self:
        """Waits until this replica leads; raises as `LeaderElection.lead`."""
        self._election.lead(timeout)
        return self

    def resign(self) -> None:
        """Lets another replica lead."""
        self._election.resign()

    def local(self) -> dict[str, str]:
        """The state as this replica has it, which may be the past."""
        return dict(self._state)

    def get(self, key: str) -> str | None:
        """The value of a key, None if it has none; never one from the past."""
        with self._one_at_a_time:
            self._leader().confirm()
            return self._state.get(key)

    def put(self, key: str, value: str) -> None:
        """Sets the value of a key."""
        with self._one_at_a_time:
            self._write(self._leader(), key, value)

    def delete(self, key: str) -> None:
        """Takes the value of a key away."""
        with self._one_at_a_time:
            self._write(self._leader(), key, None)

    def compare_and_set(self, key: str, expected: str | None, value: str) -> bool:
        """Sets the value of a key if it has the expected one; None expects no value.

        Returns:
            Whether it had the expected value, and now has the new one.
        """
        with self._one_at_a_time:
            leader = self._leader()
            leader.catch_up()
            if self._state.get(key) == expected:
                self._write(leader, key, value)
                return True
            # The answer must not come from an old state.
            leader.confirm()
            return False

    def close(self) -> None:
        """Stops following and leading."""
        self._election.close()

    def __enter__(self) -> Self:
        """Starts it."""
        return self.start()

    def _leader(self) -> Leader:
        leader = self._election.leader
        if leader is None:
            name = self.leader_name
            raise ProducerBusy(*self._log, name, "this replica does not lead; the log is held")
        return leader

    def _write(self, leader: Leader, key: str, value: str | None) -> None:
        leader.append([(key.encode(), None if value is None else value.encode())])

    def _take(self, record: LogRecord) -> None:
        """Applies a record of the log."""
        key = (record.key or b"").decode()
        if record.value is None:
            self._state.pop(key, None)
        else:
            self._state[key] = record.value.decode()
