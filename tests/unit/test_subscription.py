"""What a subscription refuses before it asks anybody, without a broker and without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from coopconsume.errors import AlreadyClosed, InvalidOption, MissingOption
from coopconsume.options import Options
from coopconsume.runtime.poll.session import PollSession
from coopconsume.subscription import QueryRun, Subscription

SPARK: Any = None


@pytest.fixture
def subscription(tmp_path) -> Subscription:
    """Of a consumer whose options name no topics."""
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g",
        "commitTable": str(tmp_path / "commits"),
    }  # fmt: skip
    return Subscription(Options.parse(given), SPARK, PollSession())


def query(job: Any) -> QueryRun:
    """A query of a job that has these attributes."""
    meter: Any = SimpleNamespace(message="Working", waiting=None)
    return QueryRun(job, meter)


def test_a_consumer_works_for_one_query_at_a_time(subscription: Subscription) -> None:
    """Another one starts once it has ended; meanwhile nobody unsubscribes."""
    ended, stops = threading.Event(), []
    job = SimpleNamespace(
        ended=ended, partitions=[SimpleNamespace(is_drained=True)], batches_running=[1],
        stop=lambda *how, **named: stops.append((*how, *named.values())),
    )  # fmt: skip
    first, second = query(job), query(job)
    subscription.run(first)
    for call in (lambda: subscription.run(second), subscription.unsubscribe):
        with pytest.raises(InvalidOption, match="a query is running"):
            call()
    assert first.status == {
        "message": "Working", "waitingFor": None, "isDataAvailable": False,
        "isTriggerActive": True,
    }  # fmt: skip
    first.stop(3.0, drain=True)
    ended.set()
    first.stop(None)
    assert stops == [(3.0, True)]
    assert not first.status["isTriggerActive"]
    subscription.run(second)
    assert subscription.query is second


def test_topics_are_named_once(subscription: Subscription) -> None:
    """By the call or by an option."""
    with pytest.raises(MissingOption, match="subscribe"):
        subscription.joined()
    subscription.options = Options.parse(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "subscribe": "t",
            "commitTable": "commits",
        }
    )  # fmt: skip
    with pytest.raises(InvalidOption, match="given as option and as call"):
        subscription.subscribe("t")


def test_nobody_joins_once_a_consumer_closes(subscription: Subscription) -> None:
    """Closing begins once; calls are refused as it goes on."""
    assert subscription.begin_to_close()
    assert not subscription.begin_to_close()
    for call in (
        lambda: subscription.subscribe("t"),
        lambda: subscription.assign({}, takeover=False),
        subscription.unsubscribe,
    ):
        with pytest.raises(AlreadyClosed):
            call()
    subscription.close()
    with pytest.raises(AlreadyClosed):
        subscription.joined()
