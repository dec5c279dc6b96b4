"""Spark settings that would run the handlers of a batch twice are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coopconsume import CooperativeConsumer, classic
from coopconsume.classic import driver_address, refuse_second_runs, usable_session
from coopconsume.errors import AlreadyClosed, MissingOption, SessionUnusable
from coopconsume.spark_versions import check_connector

_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"spark.speculation": "true"}, "spark.speculation"),
        ({"spark.master": "local[2]", "spark.speculation": "TRUE"}, "spark.speculation"),
        ({"spark.master": "spark://h:7077"}, f"{_ATTEMPTS} is 4"),
        ({"spark.master": "yarn", _ATTEMPTS: "2"}, f"{_ATTEMPTS} is 2"),
    ],
)
def test_a_session_that_would_run_handlers_twice_is_refused(
    settings: dict[str, str], named: str
) -> None:
    """Before anything is joined, with the setting and its value."""
    with pytest.raises(SessionUnusable, match=named):
        refuse_second_runs(settings.get, classic=True)


@pytest.mark.parametrize(
    "settings",
    [{"spark.master": "local[2]"}, {"spark.master": "spark://h:7077", _ATTEMPTS: "1"}],
)
def test_a_session_that_would_not_is_taken(settings: dict[str, str]) -> None:
    """Where no executor can be lost, its setting does not matter."""
    refuse_second_runs(settings.get, classic=True)


@pytest.mark.parametrize("connector", ["4.1.1", "4.3.0", "3.5.6"])
def test_a_kafka_source_of_another_spark_is_refused(connector: str) -> None:
    """With both versions and the one to give; its classes would fail in each task."""
    with pytest.raises(
        SessionUnusable, match=f"version {connector}, .* version 4.2.1: give .*4.2.1"
    ):
        check_connector(connector, "4.2.1")


@pytest.mark.parametrize(
    ("connector", "spark"), [("4.2.0", "4.2.1"), (None, "4.2.1"), ("4.2.0", "4.3.0")]
)
def test_a_kafka_source_that_fits_is_taken(connector: str | None, spark: str) -> None:
    """Of the same minor version, or as tested; an unknown one is not judged."""
    check_connector(connector, spark)


def test_on_spark_connect_only_what_is_known_is_judged() -> None:
    """A client need not know how its cluster tries stages again; speculation is refused there."""
    refuse_second_runs({"spark.master": "spark://h:7077"}.get, classic=False)
    with pytest.raises(SessionUnusable):
        refuse_second_runs({"spark.speculation": "true"}.get, classic=False)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"spark.driver.host": "10.0.0.7"}, ("10.0.0.7", "10.0.0.7")),
        (
            {"spark.driver.host": "driver-svc", "spark.driver.bindAddress": "0.0.0.0"},
            ("0.0.0.0", "driver-svc"),
        ),
        ({"spark.driver.host": "[fd00::7]", "spark.driver.bindAddress": "::"}, ("::", "[fd00::7]")),
    ],
)
def test_slots_reach_the_driver_where_executors_do(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], found: tuple[str, str]
) -> None:
    """It listens on spark.driver.bindAddress, and workers are given spark.driver.host."""
    session: Any = SimpleNamespace(conf=settings)
    monkeypatch.setattr(classic, "is_classic", lambda _: True)
    assert driver_address(session) == found
    monkeypatch.setattr(classic, "is_classic", lambda _: False)
    assert driver_address(session) is None


def test_a_function_starts_spark_only_for_options_that_are_valid() -> None:
    """A mistyped option costs no start of Spark; a valid one starts it once."""
    session: Any = SimpleNamespace(conf={"spark.master": "local[2]"})
    started: list[Any] = []

    def start() -> Any:
        started.append(session)
        return session

    with pytest.raises(MissingOption):
        CooperativeConsumer({}, start)
    assert started == []
    assert usable_session(start) is session
    assert started == [session]


def test_a_poll_says_that_its_session_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it joins a group; without this an attribute of None was missing."""
    monkeypatch.setattr("coopconsume.consumer.why_ended", lambda _session: "it was stopped")
    session: Any = SimpleNamespace(
        conf=SimpleNamespace(get=lambda _name, default=None: default, set=lambda *_: None)
    )
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g",
        "subscribe": "t", "commitTable": "/tmp/none",
    }  # fmt: skip
    consumer = CooperativeConsumer(options, session)
    with pytest.raises(SessionUnusable, match="it was stopped"):
        consumer.poll()
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.poll()
