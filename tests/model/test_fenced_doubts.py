"""What an append reports when something fails after its records or its commit were sent."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from coopconsume.errors import (
    AppendOutcomeUnknown,
    CoopConsumeError,
    LogCorrupt,
    NotAuthorized,
    ProducerBusy,
    ProducerFenced,
)
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.fold import Fold
from coopconsume.kafka.call_limit import time_left
from tests.model.fenced_broker import VISIBILITIES, Broker, Fate, writer_of

pytestmark = pytest.mark.usefixtures("clock")

#: What the first request after the lost answer ends in.
CAUSES: dict[str, Callable[[], Exception]] = {
    "no right": lambda: EngineDoubt("denied", NotAuthorized("READ", "TOPIC", "t", "anna")),
    "another one has it in the registry": lambda: ProducerBusy("t", 0, "ben"),
    "fenced by the registry": lambda: ProducerFenced("t", 0, 1, 2, "ben"),
    "a corrupt log": lambda: LogCorrupt("t", 0, 3, "a gap"),
    "a fault of the client": lambda: RuntimeError("client"),
    "no answer": lambda: EngineDoubt("no answer"),
}


def failure(call: Callable[[], object]) -> BaseException | None:
    """What a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test judges it
        return error
    return None


@pytest.mark.parametrize("visibility", VISIBILITIES)
@pytest.mark.parametrize("request_", ["metadata", "init", "ends", "read"])
@pytest.mark.parametrize("cause", CAUSES)
def test_an_append_that_is_in_the_log_is_never_reported_as_not_in_it(
    visibility: str, request_: str, cause: str
) -> None:
    """Whatever fails after its last request was sent, the error names the batch."""
    if visibility == "filter" and request_ == "init":
        request_ = "metadata"  # There is no transactional id.
    broker = Broker()
    writer = writer_of(broker, visibility=visibility, timeout=2).acquire()
    sent = "append" if visibility == "filter" else "commit"
    done: list[str] = []

    def fate(name: str) -> Fate:
        if done and name == request_:
            make = CAUSES[cause]
            raise make()
        if name == sent:
            done.append(name)
            return "unanswered"
        return "done"

    broker.fate = fate
    for _ in range(2):
        error = failure(lambda: writer.append([b"a"], batch_id="b1"))
        if error is not None:  # Else it saw its batch before anything failed.
            assert isinstance(error, AppendOutcomeUnknown)
            assert error.batch_id == "b1"
            assert error.__cause__ is not None
    broker.fate = lambda _: "done"
    found = writer.resolve("b1")
    assert found is not None
    assert writer.append([b"a"], batch_id="b1") == found
    assert len([raw for raw in broker.visible() if raw.value == b"a"]) == 1


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_a_client_that_fails_at_once_raises_its_own_error(visibility: str) -> None:
    """Nothing was sent, as the log shows."""
    broker = Broker()
    writer = writer_of(broker, visibility=visibility, timeout=2).acquire()

    def fate(name: str) -> Fate:
        if name == "produce":
            broker.fate = lambda _: "done"
            raise TypeError("a header is no text")
        return "done"

    broker.fate = fate
    with pytest.raises(TypeError, match="no text"):
        writer.append([b"a"], batch_id="b1")
    assert writer.resolve("b1") is None
    assert writer.append([b"b"]).first_seq == 0


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_a_fenced_writer_still_answers_for_what_it_wrote(visibility: str) -> None:
    """Its append was unknown, then it is fenced: the same append again finds the batch."""
    broker = Broker()
    writer = writer_of(broker, visibility=visibility, timeout=2).acquire()
    sent = "append" if visibility == "filter" else "commit"
    lost = {sent: "unanswered", "metadata": "lost"}
    broker.fate = lambda name: lost.get(name, "done")  # type: ignore[return-value]
    with pytest.raises(AppendOutcomeUnknown):
        writer.append([b"a"], batch_id="b1")
    broker.fate = lambda _: "done"
    writer_of(broker, visibility=visibility, timeout=2).acquire()
    with pytest.raises(CoopConsumeError):
        writer.append([b"b"], batch_id="b2")
    assert writer.append([b"a"], batch_id="b1").first_seq == 0
    with pytest.raises(ProducerFenced):
        writer.append([b"b"], batch_id="b2")


@pytest.mark.parametrize("visibility", VISIBILITIES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "one owner"])
def test_a_batch_in_doubt_is_looked_for_although_others_have_made_the_fold_forget_it(
    visibility: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They append more batches than are remembered before the writer reads on."""
    monkeypatch.setattr(Fold, "remembered", 5)
    broker = Broker()
    writer = writer_of(broker, visibility=visibility, shared=shared, timeout=5).acquire()
    other = writer_of(broker, visibility=visibility, shared=shared, timeout=5)
    writer.append([b"first"])
    sent = "append" if visibility == "filter" else "commit"
    phase: list[str] = []

    def fate(name: str) -> Fate:
        if not phase and name == sent:
            phase.append("sent")
            return "unanswered"
        if phase == ["sent"]:
            phase.append("others")
            other.acquire()
            for number in range(7):
                other.append([b"%d" % number])
            phase.append("done")
        return "done"

    broker.fate = fate
    error = failure(lambda: writer.append([b"a"], batch_id="b1"))
    assert phase[-1] == "done"
    assert error is None or isinstance(error, AppendOutcomeUnknown)
    if shared:
        assert error is None
        again = writer_of(broker, visibility=visibility, shared=True).acquire()
        assert again.append([b"a"], batch_id="b1").count == 1
    assert len([raw for raw in broker.visible() if raw.value == b"a"]) == 1


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_a_shared_writer_resolves_what_another_one_has_written_meanwhile(visibility: str) -> None:
    """It reads on to the end first."""
    broker = Broker()
    asked = writer_of(broker, visibility=visibility, shared=True).acquire()
    asked.append([b"first"])
    other = writer_of(broker, visibility=visibility, shared=True).acquire()
    done = other.append([b"a"], batch_id="b1")
    assert asked.resolve("b1") == done
    assert asked.resolve("b2") is None


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_no_answer_is_waited_for_beyond_the_time_of_a_call(visibility: str) -> None:
    """Also where clients would wait for longer; that ends with the call."""
    left: list[float] = []
    broker = Broker(tick=lambda: left.append(time_left()))
    writer = writer_of(broker, visibility=visibility, timeout=500).acquire()
    assert left
    assert max(left) <= 500
    left.clear()
    writer.append([b"a"], batch_id="b1", timeout=5)
    writer._session.identified_at = -math.inf
    writer.append([b"b"], timeout=5)
    assert left
    assert max(left) <= 5
    for call in (writer.refresh, lambda: writer.resolve("b0", since=0)):
        writer._appender.drop()
        left.clear()
        call()
        assert left
        assert 5 < max(left) <= 500
    assert time_left() == math.inf
