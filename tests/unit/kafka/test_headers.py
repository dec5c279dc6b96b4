"""Headers of messages that are laid out otherwise than those of confluent-kafka 2.16."""

from __future__ import annotations

import gc

import confluent_kafka
import pytest

from coopconsume.kafka.headers import Headers, message_headers, quick_headers


class Message(confluent_kafka.Message):  # type: ignore[misc]
    """A message of another release."""

    def headers(self) -> Headers | None:
        """Return its headers; one with the topic `odd` has a name that is not UTF-8."""
        if self.topic() == "odd":
            raise SystemError("returned a result with an exception set")
        found: Headers | None = super().headers()
        return found


def test_what_the_package_returns_is_taken() -> None:
    """Also of one that never was in librdkafka, and without headers."""
    headers = [("a", b"1"), ("a", None)]
    for kind in (Message, confluent_kafka.Message):
        assert message_headers(kind(headers=headers)) == headers
        assert message_headers(kind(topic="t")) == []


def test_a_name_that_cannot_be_read_is_an_error_with_the_remedy() -> None:
    """Not one of the interpreter."""
    with pytest.raises(UnicodeError, match=r"install confluent-kafka 2\.16"):
        message_headers(Message(topic="odd"))


def test_nothing_is_collected_while_headers_are_asked_for() -> None:
    """That would clear the error of a name; afterwards it is as before."""
    seen = []

    class Watched(Message):
        def headers(self) -> Headers | None:
            seen.append(gc.isenabled())
            return super().headers()

    assert gc.isenabled()
    assert quick_headers([Watched(topic="t")]) == [[]]
    with pytest.raises(SystemError):
        quick_headers([Watched(topic="odd")])
    assert gc.isenabled()
    gc.disable()
    try:
        quick_headers([Watched(topic="t")])
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert seen == [False] * 3
