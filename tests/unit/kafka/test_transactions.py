"""What Python's clients have no function for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer
from kafka.errors import ConcurrentTransactionsError

from coopconsume.errors import EngineNotUsable
from coopconsume.kafka import transactions
from coopconsume.kafka.transactions import check_brokers, fence_producers, group_metadata


@pytest.mark.parametrize("instance", [None, "static-1"])
def test_a_place_in_a_group_is_as_the_client_has_it(instance: str | None) -> None:
    """A consumer that has not joined is at a place that we can name, too."""
    static = {} if instance is None else {"group.instance.id": instance}
    consumer = Consumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "gr\u00f6up", "log_level": 0} | static
    )
    assert group_metadata("gr\u00f6up", instance=instance) == consumer.consumer_group_metadata()
    consumer.close()


def test_a_member_of_a_generation_is_named_by_its_place() -> None:
    """Each part of the place counts."""
    place = ("g", 7, "member", "instance")
    others = [("h", *place[1:]), ("g", 8, *place[2:]), ("g", 7, "m", "instance"), place[:3]]
    assert len({group_metadata(*one) for one in [place, *others]}) == 5


def test_a_client_without_the_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the release that has them."""

    def cannot(_: str) -> None:
        raise OSError("no such library")

    monkeypatch.setattr(transactions.ctypes, "CDLL", cannot)
    transactions._librdkafka.cache_clear()
    with pytest.raises(EngineNotUsable, match=r"install release 2\.16"):
        group_metadata("g")


@pytest.mark.parametrize(("version", "is_old"), [((3, 5), True), ((3, 6), False), ((4, 3), False)])
def test_brokers_whose_transactions_are_not_safe_are_refused(
    version: tuple[int, int], *, is_old: bool
) -> None:
    """They do not verify that a record belongs to an open transaction (KIP-890)."""
    admin = SimpleNamespace(_manager=SimpleNamespace(broker_version=version))
    if is_old:
        with pytest.raises(EngineNotUsable, match=r"version 3\.5; 3\.6 is needed"):
            check_brokers(admin)
    else:
        check_brokers(admin)


def test_a_transaction_that_is_not_decided_in_time_is_an_error() -> None:
    """It is asked for until the time is over, and not for ever."""
    asked: list[float] = []

    def run(*_: object) -> None:
        asked.append(0.0)
        assert len(asked) < 10
        raise ConcurrentTransactionsError

    admin = SimpleNamespace(_manager=SimpleNamespace(broker_version=(4, 0), run=run))
    with pytest.raises(ConcurrentTransactionsError):
        fence_producers(admin, "an id", 60_000, lambda: 1.0 - 0.5 * len(asked))
    assert len(asked) == 2
