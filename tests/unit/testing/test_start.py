"""The wait for a broker that starts."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from coopconsume.errors import BrokerStartFailed
from coopconsume.testing.local import broker as module
from coopconsume.testing.local.broker import LocalKafka

if TYPE_CHECKING:
    from coopconsume.testing.local.process import BrokerProcess


def test_a_slow_start_is_reported_and_the_wait_ends_with_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its limit is long enough for a loaded machine, and no reason to wait for a dead process."""
    process = SimpleNamespace(is_running=True, exit_code=137)
    looks = []

    def answers(_: float) -> bool:
        looks.append(time.monotonic())
        process.is_running = len(looks) < 4
        return False

    monkeypatch.setattr(module, "_SAY_EVERY", 0.0)
    broker = LocalKafka()
    monkeypatch.setattr(broker, "_answers", answers)
    began = time.monotonic()
    with (
        caplog.at_level(logging.WARNING, "coopconsume"),
        pytest.raises(BrokerStartFailed, match="exit code 137 before it was ready"),
    ):
        broker._await_ready(cast("BrokerProcess", process), began + broker._start_timeout)
    assert len(looks) == 4
    assert len(caplog.records) == 4
    assert broker._start_timeout >= 300
    assert "the broker is not ready after " in caplog.text
