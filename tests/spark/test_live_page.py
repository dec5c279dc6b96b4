"""The live page of a running query."""

from __future__ import annotations

import http.client
import json
import time

import pytest

from coopconsume import CooperativeConsumer
from coopconsume.errors import AlreadyClosed

pytestmark = [pytest.mark.spark, pytest.mark.broker]

PATIENCE = 120.0


def _ask(port: str, path: str, **headers: str) -> http.client.HTTPResponse:
    link = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE)
    link.request("GET", path, headers=headers)
    answer = link.getresponse()
    answer.text = answer.read().decode()
    link.close()
    return answer


def test_a_query_shows_its_group_on_a_page(spark, kafka, topic, produce, tmp_path):
    """One page for the consumer, with its member, its slots and what is done; it ends with it."""
    orders = topic(1)
    produce(orders, [(b"k%d" % i, b"v") for i in range(20)])
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": orders,
        "subscribe": orders, "commitTable": str(tmp_path / "commits"), "slots": "2",
    }  # fmt: skip
    with CooperativeConsumer(options, spark) as consumer:
        consumer.subscribe()
        place = str(tmp_path / "dead")
        query = consumer.foreach(lambda _: None, dead_letter=place).start()
        query.processAllAvailable()
        url = query.ui_url
        assert url == query.ui_url
        port, _, token = url.rpartition(":")[2].partition("/?token=")
        cookie = _ask(port, f"/?token={token}").headers["Set-Cookie"].partition(";")[0]
        until = time.monotonic() + PATIENCE
        while True:
            found = json.loads(_ask(port, f"/api/groups/{orders}/status", Cookie=cookie).text)
            if found.get("lag") == 0 and found["state"] == "Stable":
                break
            assert time.monotonic() < until, found
        (member,) = found["members"]["rows"]
        assert (member[-3], member[-1]) == ("2", "working")
        letters = _ask(port, f"/api/groups/{orders}/letters", Cookie=cookie)
        assert (letters.status, json.loads(letters.text)["count"]) == (200, 0)
        assert json.loads(_ask(port, "/api/session", Cookie=cookie).text)["group"] == orders
    with pytest.raises(OSError, match="refused"):
        _ask(port, "/")
    with pytest.raises(AlreadyClosed):
        _ = query.ui_url
