"""The live page without a broker: access, ports, content, and groups that cannot be read."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from commits import CommitStore, Pending
from commits.model import PARKED_MS
from coopconsume import ui
from coopconsume.admin.offsets.status import PartitionStatus, times_of
from coopconsume.admin.overview import ClaimOverview
from coopconsume.admin.overview.build import GroupFacts, build
from coopconsume.admin.overview.reader import GroupReading
from coopconsume.admin.overview.watch import GroupWatch, View, Watches
from coopconsume.admin.pictures import OffsetState
from coopconsume.cli import main
from coopconsume.errors import AlreadyClosed, InvalidOption, PageUnavailable
from coopconsume.kafka.coordinator import KafkaGroup
from coopconsume.kafka.parked_keys import BehindParked
from coopconsume.monitoring.pace import Sample
from coopconsume.options import Options
from coopconsume.ui.app import _decision
from coopconsume.ui.content import group_content, partition_content
from coopconsume.ui.page import LivePage, PageOnDemand

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from coopconsume.admin.overview import PartitionOverview

HALF, TOP = 2**62, 2**63 - 1
PATIENCE = 100.0
LETTER = {"topic": "t", "partition": 0, "offset": 5, "commit": "c"}


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """Options of a cluster that does not answer."""
    return {"kafka.bootstrap.servers": "127.0.0.1:1", "commitTable": str(tmp_path / "commits")}


@pytest.fixture
def page(nowhere: dict[str, str]) -> Iterator[LivePage]:
    """A page without decisions."""
    with LivePage(nowhere) as found:
        yield found


class Client:
    """Sends requests to a page."""

    def __init__(self, page: LivePage) -> None:
        self.port, _, self.token = page.url.rpartition(":")[2].partition("/?token=")

    def ask(
        self, path: str, method: str = "GET", body: str = "", **headers: str
    ) -> tuple[int, Mapping[str, str], str]:
        link = http.client.HTTPConnection("127.0.0.1", int(self.port), timeout=PATIENCE)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        link.request(method, path, body or None, named)
        answer = link.getresponse()
        found = answer.status, answer.headers, answer.read().decode()
        link.close()
        return found

    def cookie(self) -> str:
        """The cookie for the token."""
        _, headers, _ = self.ask(f"/?token={self.token}")
        return headers["Set-Cookie"].partition(";")[0]


_POLICY = "Content-Security-Policy"


def test_nothing_is_shown_without_the_token(page: LivePage) -> None:
    """Neither files nor data; a wrong token, cookie or method changes nothing."""
    client = Client(page)
    paths = ("/", "/static/page.js", "/api/session", "/api/groups", "/api/groups/g/status")
    for path in paths:
        status, headers, body = client.ask(path)
        assert (status, "Set-Cookie" in headers) == (401, False), path
        assert "coopconsume ui" in body
    assert client.ask("/?token=" + "x" * len(client.token))[0] == 401
    assert client.ask(f"/api/session?token={client.token}")[0] == 401
    assert client.ask(f"/?token={client.token}", "POST")[0] == 401
    name = client.cookie().partition("=")[0]
    assert client.ask("/", Cookie=f"{name}={client.token}")[0] == 401
    assert client.ask("/", Cookie=f"{name}=\u00e9")[0] == 401


def test_the_page_takes_nothing_from_another_server(page: LivePage) -> None:
    """Its files name no other one, and its policy lets browsers ask none."""
    client = Client(page)
    _, headers, _ = client.ask("/", Cookie=client.cookie())
    policy = dict(part.strip().partition(" ")[::2] for part in headers[_POLICY].split(";"))
    assert policy["default-src"] == "'none'"
    assert {word for words in policy.values() for word in words.split()} == {
        "'none'", "'self'", "data:"
    }  # fmt: skip
    files = [*Path(ui.__file__).with_name("static").iterdir()]
    assert {"index.html", "page.js", "page.css"} <= {file.name for file in files}
    for file in files:
        found = set(re.findall(r"""(?:\w+:)?//[^\s"'`)]+\.[^\s"'`)]+""", file.read_text()))
        assert found <= {"http://www.w3.org/2000/svg"}, file.name


def test_the_token_gives_a_cookie_that_other_sites_cannot_use(page: LivePage) -> None:
    """The cookie is HttpOnly and SameSite=Strict; pages load nothing from elsewhere."""
    client = Client(page)
    status, headers, body = client.ask(f"/?token={client.token}")
    flags = {part.strip().lower() for part in headers["Set-Cookie"].split(";")[1:]}
    assert (status, {"httponly", "samesite=strict"} <= flags) == (200, True)
    assert client.token not in headers["Set-Cookie"] + body
    status, headers, body = client.ask("/", Cookie=client.cookie())
    assert status == 200
    assert "<title>coopconsume</title>" in body
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert client.ask("/static/../app.py", Cookie=client.cookie())[0] == 404


def test_requests_that_change_something_need_the_secret_and_the_switch(page: LivePage) -> None:
    """The cookie alone is not enough, as another program of the browser may send it."""
    client = Client(page)
    cookie, path = client.cookie(), "/api/groups/g/decide"
    secret = json.loads(client.ask("/api/session", Cookie=cookie)[2])["csrf"]
    for wrong in ({}, {"X_Coopconsume_CSRF": "x"}, {"X_Coopconsume_CSRF": client.token}):
        status, _, body = client.ask(path, "POST", "{}", Cookie=cookie, **wrong)
        assert (status, "reload the page" in body) == (403, True)
    headers = {"Cookie": cookie, "X_Coopconsume_CSRF": secret}
    status, _, body = client.ask(path, "POST", "{}", **headers)
    assert (status, "--allow-decisions" in body) == (403, True)
    assert client.ask(path, "POST", "{}", X_Coopconsume_CSRF=secret)[0] == 401


@pytest.mark.parametrize(
    "body",
    [
        "", "[]", '{"action": "replay"}', '{"action": "delete", "letters": [1]}',
        '{"action": "replay", "letters": []}', '{"action": "replay", "letters": [{"topic": "t"}]}',
        json.dumps({"action": "replay", "letters": [LETTER | {"topic": None}]}),
        json.dumps({"action": "replay", "letters": [LETTER | {"commit": 7}]}),
        json.dumps({"action": "replay", "letters": [LETTER], "reason": ["no"]}),
        json.dumps({"action": "replay", "letters": [LETTER], "by": 5}),
    ],
)  # fmt: skip
def test_an_unknown_decision_is_refused(nowhere: dict[str, str], body: str) -> None:
    """Nothing is read or written for it."""
    with LivePage(nowhere, allow_decisions=True) as page:
        client = Client(page)
        cookie = client.cookie()
        secret = json.loads(client.ask("/api/session", Cookie=cookie)[2])["csrf"]
        headers = {"Cookie": cookie, "X_Coopconsume_CSRF": secret}
        status, _, answer = client.ask("/api/groups/g/decide", "POST", body, **headers)
        assert (status, "replay or discard" in answer) == (400, True)


def test_null_is_no_reason_and_no_name() -> None:
    """They are kept with the decision as nobody has written them."""
    body = {"action": "replay", "letters": [LETTER]}
    nothing = {"name": None, "reason": ""}
    assert _decision(body)[3] == _decision(body | {"reason": None, "by": None})[3] == nothing
    said = _decision(body | {"reason": "asked for", "by": "ana"})[3]
    assert said == {"name": "ana", "reason": "asked for"}


def test_a_broker_that_does_not_answer_is_an_error_on_the_page(
    page: LivePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page itself is served, and its data say what is wrong."""
    monkeypatch.setattr("coopconsume.kafka.calls._CONNECT_MS", 500)
    client = Client(page)
    status, _, body = client.ask("/api/groups", Cookie=client.cookie())
    assert (status, "127.0.0.1:1" in json.loads(body)["error"]) == (503, True)
    status, _, body = client.ask("/api/groups/g/letters", Cookie=client.cookie())
    assert (status, "deadLetter" in json.loads(body)["error"]) == (400, True)


def test_the_token_is_not_logged(nowhere: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """Requests may be logged by the server, their tokens not."""
    caplog.set_level(logging.DEBUG)
    with LivePage(nowhere) as page:
        client = Client(page)
        client.ask(f"/?token={client.token}")
        assert client.token not in caplog.text


def test_a_port_in_use_is_named(nowhere: dict[str, str]) -> None:
    """In Python and on the command line, in one sentence."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PageUnavailable, match=f"port {port}: address already in use"):
            LivePage(nowhere, port=port)
        place = [f"--bootstrap-servers={nowhere['kafka.bootstrap.servers']}", "--commit-table=/x"]
        result = CliRunner().invoke(main, ["ui", f"--port={port}", *place])
        assert result.exit_code == 1
        assert result.stderr.startswith("coopconsume: the live page cannot be started: ")
        assert result.stderr.count("\n") == 1


def test_a_closed_page_frees_its_port(nowhere: dict[str, str]) -> None:
    """And a wrong option is refused before it is opened."""
    with LivePage(nowhere) as page:
        port = int(Client(page).port)
    assert not page.is_open
    page.close()
    with LivePage(nowhere, port=port) as page:
        assert Client(page).ask("/")[0] == 401
    with pytest.raises(InvalidOption):
        LivePage(nowhere | {"slots": "none"})


def test_a_consumer_has_one_page_which_starts_when_it_is_asked_for(nowhere: dict[str, str]) -> None:
    """None starts once the consumer begins to close; its dead letters are those of the query."""
    given = {**nowhere, "kafka.group.id": "g", "deadLetter": "/of/the/consumer"}
    options, closing = Options.parse(given), threading.Event()
    on_demand = PageOnDemand({**given, "DeadLetter": "/x"}, options, None, closing)
    with on_demand:
        found = on_demand.get("/of/the/query")
        assert on_demand.get(None) is found
        assert found.is_open
    assert not found.is_open
    closing.set()
    with pytest.raises(AlreadyClosed):
        on_demand.get(None)


def test_prometheus_gets_metrics_for_the_token(nowhere: dict[str, str]) -> None:
    """As it sends a token, and nothing else for it; a browser with the cookie sees them, too."""
    with LivePage(nowhere, "shop") as page:
        client = Client(page)
        bearer = f"Bearer {client.token}"
        assert client.ask("/metrics")[0] == 401
        assert client.ask("/metrics", Authorization=f"{bearer}x")[0] == 401
        assert client.ask("/metrics", Authorization=f"Basic {client.token}")[0] == 401
        status, headers, text = client.ask("/metrics", Authorization=bearer)
        assert (status, headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
        assert 'coopconsume_exporter_age_seconds{group="shop"}' in text
        assert client.ask("/api/session", Authorization=bearer)[0] == 401
        assert client.ask("/metrics", Cookie=client.cookie())[0] == 200


def test_a_missing_package_is_named(nowhere: dict[str, str]) -> None:
    """The command and the class say how to install it; nothing else of the library needs it."""
    code = (
        "import sys\nsys.modules['uvicorn'] = None\n"
        "from coopconsume.ui.page import LivePage\n"
        "import coopconsume.cli, coopconsume.consumer\n"
        "try:\n    LivePage(eval(sys.argv[1]))\nexcept Exception as error:\n    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, repr(nowhere)], capture_output=True, text=True, check=True
    )
    assert "pip install 'coopconsume[ui]'" in run.stdout


# -- content


def reading(store: CommitStore, ends: Mapping[tuple[str, int], int]) -> GroupReading:
    """What a store says of the group g in partitions with these ends."""
    facts = GroupFacts(
        KafkaGroup("Stable", "sticky", ()), store.assignment("g"), store.claims("g"),
        store.history("g"), group="g", cluster="c", servers="kafka:9092", table="/data/commits",
        store=store.id,
    )  # fmt: skip
    times, state, pending = times_of(facts.history), store.state("g"), store.pending("g")
    statuses = [
        PartitionStatus.of(
            tp, state.get(tp), pending=pending.get(tp), log_start=0 if tp in ends else None,
            end_offset=ends.get(tp), times=times.get(tp),
        )
        for tp in sorted({*state, *facts.owned})
    ]  # fmt: skip
    return GroupReading(build(replace(facts, statuses=statuses)))


def with_partitions(found: GroupReading, partitions: Iterable[PartitionOverview]) -> GroupReading:
    """A reading with other partitions."""
    return GroupReading(replace(found.overview, partitions=tuple(partitions)))


@pytest.fixture
def two(tmp_path: Path) -> GroupReading:
    """Two members; partition 0 has a parked, a failed and an open record, partition 1 is done."""
    store = CommitStore.open(tmp_path / "commits", cluster="c")
    shares = {"a": [("t", 0, 0, HALF - 1)], "b": [("t", 0, HALF, TOP), ("t", 1)]}
    epoch = store.open_epoch("g", shares, previous=None)
    pending = [Pending(1, 7, 3, PARKED_MS, "no"), Pending(4, 7, 2, 5, "x" * 2_000)]
    parts = {("t", 0): [(0, 0), (2, 2), (6, 7)], ("t", 1): [(0, 9)]}
    store.commit("g", epoch, "a", {("t", 0): parts["t", 0]}, pending={("t", 0): pending})
    store.commit("g", epoch, "b", {("t", 1): parts["t", 1]})
    return reading(store, {("t", 0): 20, ("t", 1): 10})


def test_the_status_has_what_the_page_shows(two: GroupReading) -> None:
    """States, owners of key ranges, and the blocker, all as plain data."""
    found = json.loads(json.dumps(group_content(View(two, 1.0, (Sample(1.0, 2, 3.0, 4.0, 5),)))))
    assert [row[:2] for row in found["members"]["rows"]] == [
        [{"owner": 0, "letter": "A"}, "a"], [{"owner": 1, "letter": "B"}, "b"],
    ]  # fmt: skip
    assert (found["owners"], found["claims"]["rows"]) == (["a", "b"], [])
    assert found["workers"] == 0  # Kafka lists neither
    zero, one = found["partitions"]
    assert zero == ["t", 0, OffsetState.PARKED, 16, [[0, 0, 5_000], [1, 5_000, 10_000]]]
    assert one == ["t", 1, OffsetState.DONE, 0, [[1, 0, 10_000]]]
    assert (found["pending"], found["parked"], found["lag"], found["found"]) == (2, 1, 16, 2)
    assert found["rows"][0]["map"] == "14123211" + "0" * 12
    assert found["blockers"]["titles"][:5] == ["partition", "blocker", "state", "key", "attempts"]
    (blocker,) = found["blockers"]["rows"]
    assert blocker[:5] == ["t-0", "1", "parked", "hash 7", "3"]
    assert (found["oldest"]["partition"], found["oldest"]["attempts"]) == ("t-0", 3)
    # The pending record waits behind the parked one: their key is blocked once.
    (place,) = found["blockedPlaces"]
    assert (place["topic"], place["partition"], place["offset"]) == ("t", 0, 1)
    assert found["series"] == [[1.0, 2, 3.0, 4.0, 5]]
    # One sample has no rate, and Kafka lists no member that could work.
    assert found["pace"] is None
    verdict = found["verdict"]
    assert (verdict["level"], verdict["reason"]) == ("action", "nobody")
    assert re.fullmatch(
        r"Nobody has worked on this group since [-: 0-9]+ UTC: 16 records wait\. If you run its "
        r"job, start it again; it ran last as .+", verdict["sentence"],
    )  # fmt: skip
    assert [one["reason"] for one in verdict["others"]] == ["decision"]
    assert found["unknown"] == 0
    uncommitted = [replace(one, stable_offset=None) for one in two.overview.partitions]
    found = group_content(View(with_partitions(two, uncommitted), 1.0))
    assert (found["lag"], found["unknown"]) == (0, 2), "nothing known is not nothing to do"


def test_each_blocked_key_has_the_records_behind_it_and_the_commands_that_decide(
    two: GroupReading,
) -> None:
    """The lowest failed record of a key blocks it; parked ones come first."""
    zero, one = two.overview.partitions
    pending = {
        5: Pending(5, 7, 3, PARKED_MS, "no", since_ms=61_000),
        8: Pending(8, 7, 1, 5, "behind the parked one"),
        6: Pending(6, 9, 4, 5, "again", key="k"), 9: Pending(9, 9, 1, 5, "behind it"),
        3: Pending(3, 8, 1, PARKED_MS, "none behind"), 4: Pending(4, None, 1, 5, "no hash"),
        2: Pending(2, None, 1, 5, "no hash"),
    }  # fmt: skip
    behind = BehindParked(12, is_all=False, keys={7: 12})
    blocked = replace(zero, pending=pending, stable_offset=2, behind_parked=behind, topic="a b")
    placed = with_partitions(two, [blocked, one])
    placed = replace(placed, overview=replace(placed.overview, place="--commit-table /c"))
    content = group_content(View(placed, 1.0))
    rows = {row[0]: row[1:] for row in content["blockedKeys"]["rows"]}
    assert list(rows) == ["a b-0@5", "a b-0@3", "a b-0@6", "a b-0@2", "a b-0@4"]
    assert [place["offset"] for place in content["blockedPlaces"]] == [5, 3, 6, 2, 4]
    assert content["blockedCount"] == 5
    since = "1970-01-01 00:01:01 UTC"
    assert rows["a b-0@5"][:6] == ["hash 7", "parked", since, "at least 12", "3", "-"]
    assert rows["a b-0@3"][2:4] == ["-", "at least 0"]
    assert rows["a b-0@6"] == ["k", "failed", "-", "-", "4", "when a job runs", "again"]
    assert [place["arguments"] for place in content["blockedPlaces"]] == [
        f"g --topic 'a b' --partition 0 --offset {offset} --commit-table /c"
        for offset in (5, 3, 6, 2, 4)
    ]
    for action in content["choices"]:
        assert CliRunner().invoke(main, ["records", action, "--help"]).exit_code == 0
    many = {o: Pending(o, o, 1, 5, "e" * 900) for o in range(10, 1_000)}
    content = group_content(View(with_partitions(two, [replace(zero, pending=many)]), 1.0))
    assert (content["blockedCount"], len(content["blockedPlaces"])) == (990, 200)
    assert len(json.dumps(content["blockedKeys"])) < 100_000


def test_blocked_keys_are_found_once_for_each_reading(two: GroupReading) -> None:
    """A page asks every two seconds, and hundreds of thousands of records may have failed."""
    zero, _ = two.overview.partitions

    class Counted(dict[int, Pending]):
        asked = 0

        def values(self):
            self.asked += 1
            return super().values()

    failed = {o: Pending(o, o % 7, 1, 5, "no") for o in reversed(range(100))}
    pending = Counted(failed)
    found = with_partitions(two, [replace(zero, pending=pending)])
    assert found.blocked.count == 7
    asked = pending.asked
    assert found.blocked.count == 7
    assert pending.asked == asked
    assert [record.offset for _, record in found.blocked.first] == [*range(7)]


def test_the_time_until_all_is_done_is_that_of_the_last_half_minute(two: GroupReading) -> None:
    """Rates count for their time; parked records, and those behind them, are not to be done."""
    claim = ClaimOverview(1, "c", ())
    partition, done = two.overview.partitions
    behind = replace(partition, behind_parked=BehindParked(5))
    claimed = GroupReading(replace(two.overview, claims=(claim,), partitions=(behind, done)))
    samples = [Sample(0.0, 9, 99.0, 0.0, 0), Sample(60.0, 9, 99.0, 0.0, 0),
               Sample(64.0, 9, 1.0, 0.0, 0), Sample(70.0, 9, 6.0, 2.0, 0)]  # fmt: skip
    found = group_content(View(claimed, 70.0, tuple(samples)))
    assert found["pace"] == {"done": 4.0, "new": 1.2, "seconds": 10.0, "doneIn": 10 / 2.8}
    reasons = [found["verdict"]["reason"], *(one["reason"] for one in found["verdict"]["others"])]
    assert reasons == ["decision", "working"]
    assert found["verdict"]["others"][0]["sentence"] == "Working, done in 4 s"
    still = [replace(one, done_rate=0.0) for one in samples[1:]] + [Sample(89.0, 9, 0.0, 0.0, 0)]
    blocked = GroupReading(replace(claimed.overview, partitions=(open_partition(partition), done)))
    stalled = group_content(View(blocked, 89.0, tuple(still)))["verdict"]
    assert stalled["sentence"] == "No commit for 29 s: 16 records not done"


def open_partition(one: PartitionOverview) -> PartitionOverview:
    """Returns a partition without its failed records."""
    return replace(one, pending={})


def test_the_map_of_a_partition_shows_each_state(two: GroupReading) -> None:
    """Done, parked, done, gap, pending, gap, done, not committed; also of a part of the log."""
    whole = partition_content(two.statuses[0])
    assert whole["map"]["worst"] == "14123211" + "0" * 12
    assert whole["map"]["totals"] == [12, 4, 2, 1, 1]
    parked, failed = whole["failed"]["rows"]
    assert (parked, failed[:3]) == (["1", "3", "parked", "no"], ["4", "2", "0 s"])
    assert len(failed[3]) == 500
    part = partition_content(two.statuses[0], 3, 6)
    assert (part["map"]["first"], part["map"]["end"], part["map"]["worst"]) == (3, 6, "232")
    assert partition_content(two.statuses[0], 99, 3)["map"]["end"] == 20


def test_a_part_of_a_partition_has_its_gaps(two: GroupReading) -> None:
    """More gaps than fit are found by a look at a part of the log."""
    whole = partition_content(two.statuses[0])
    assert [row[:4] for row in whole["gaps"]["rows"]] == [
        ["t-0", "1", "1", "1"], ["t-0", "3", "5", "3"],
    ]  # fmt: skip
    part = partition_content(two.statuses[0], 4, 9)
    assert [row[1:3] for row in part["gaps"]["rows"]] == [["3", "5"]]
    assert (whole["gapCount"], part["gapCount"]) == (2, 1)


def test_rows_are_sorted_found_and_paged(two: GroupReading) -> None:
    """The compact list stays whole and in order."""
    view = View(two, 1.0)

    def names(**how) -> list[str]:
        return [row["name"] for row in group_content(view, **how)["rows"]]

    assert names() == ["t-0", "t-1"]
    assert names(start=1, limit=1) == ["t-1"]
    assert names(find="T-1") == ["t-1"]
    for sort in ("lag", "age", "failed"):
        assert names(sort=sort) == ["t-0", "t-1"]
    swapped = with_partitions(two, two.statuses[::-1])
    assert [row["name"] for row in group_content(View(swapped, 1.0), sort="lag")["rows"]] == [
        "t-0", "t-1",
    ]  # fmt: skip


def test_one_open_offset_among_millions_is_in_each_map(tmp_path: Path) -> None:
    """In the small map, the large one and the compact list."""
    store = CommitStore.open(tmp_path / "commits", cluster="c")
    epoch = store.open_epoch("g", {"a": [("t", 0)]}, previous=None)
    store.commit("g", epoch, "a", {("t", 0): [(0, 6_999_999), (7_000_001, 9_999_999)]})
    found = reading(store, {("t", 0): 10_000_000})
    content = group_content(View(found, 1.0))
    assert content["partitions"][0][2] == OffsetState.GAP
    assert content["rows"][0]["map"].count("2") == 1
    assert partition_content(found.statuses[0])["map"]["worst"].count("2") == 1


def test_a_thousand_partitions_are_a_small_answer(tmp_path: Path) -> None:
    """The rows of one page, and some bytes for each partition."""
    store = CommitStore.open(tmp_path / "commits", cluster="c")
    shares = {f"m{i}": [("t", p) for p in range(i, 1_000, 5)] for i in range(5)}
    epoch = store.open_epoch("g", shares, previous=None)
    for name, owned in shares.items():
        store.commit("g", epoch, name, {tp: [(0, 2), (4, 4)] for tp in owned})
    found = group_content(View(reading(store, {("t", p): 9 for p in range(1_000)}), 1.0))
    assert (len(found["partitions"]), len(found["rows"]), found["found"]) == (1_000, 50, 1_000)
    assert len(json.dumps(found)) < 150_000


# -- watches


class Source:
    """Opens readers whose readings, or errors, a test chooses."""

    def __init__(self, *answers: GroupReading | Exception) -> None:
        self.answers = list(answers)
        self.opened = self.closed = 0
        #: When each reading began.
        self.began: list[float] = []
        self.turn = threading.Semaphore(0)

    def __call__(self, _group: str) -> Source:
        self.opened += 1
        return self

    def read(self) -> GroupReading:
        self.began.append(time.time())
        assert self.turn.acquire(timeout=PATIENCE)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed += 1


def _until(watch: GroupWatch, is_it) -> View:
    waiting = threading.Event()
    for _ in range(10_000):
        view = watch.view()
        if is_it(view):
            return view
        waiting.wait(0.01)
    raise AssertionError(view)


def test_a_group_that_cannot_be_read_keeps_its_last_status_and_recovers(
    two: GroupReading,
) -> None:
    """The error has the time at which it began; each try connects again."""
    source = Source(two, OSError("the disk is away\nmore"), OSError("still"), two)
    watch = GroupWatch(source, "g", 0.01)
    source.turn.release()
    first = _until(watch, lambda view: view.reading is not None)
    assert first.error == ""
    _until(watch, lambda _: len(source.began) == 2)
    source.turn.release()
    failed = _until(watch, lambda view: view.error)
    assert (failed.reading, failed.at) == (two, first.at)
    assert failed.error == "OSError: the disk is away"
    assert first.at <= failed.error_since <= source.began[1]
    source.turn.release()
    still = _until(watch, lambda view: "still" in view.error)
    assert still.error_since == failed.error_since
    source.turn.release()
    again = _until(watch, lambda view: not view.error)
    assert again.at > first.at
    assert (source.opened, source.closed) == (3, 2)
    watch.close()
    source.turn.release(10)


def test_rates_are_those_between_two_readings(two: GroupReading) -> None:
    """Offsets that are moved back are no negative rate."""
    moved = with_partitions(
        two, (replace(s, end_offset=s.end_offset + 5, stable_offset=0) for s in two.statuses)
    )
    grown = with_partitions(
        two, (replace(one, end_offset=one.end_offset + 9) for one in two.statuses)
    )
    source = Source(two, grown, moved)
    watch = GroupWatch(source, "g", 0.01)
    for number in (1, 2, 3):
        source.turn.release()
        view = _until(watch, lambda view, n=number: len(view.samples) == n)
    watch.close()
    source.turn.release(10)
    first, second, third = view.samples
    assert (first.done_rate, first.new_rate) == (0.0, 0.0)
    assert second.new_rate == pytest.approx(18 / max(second.at - first.at, 1e-3), rel=0.01)
    assert second.done_rate == 0.0
    assert third.new_rate == 0.0
    assert third.done_rate == 0.0


def test_the_end_of_all_waits_for_a_reading_that_has_begun() -> None:
    """Else the process may end while a thread is in native code, and crash."""
    ready, ended = threading.Event(), []

    class Slow:
        def read(self) -> None:
            ready.wait(PATIENCE)
            watch._closed.wait(PATIENCE)
            ended.append(1)
            raise OSError

        def close(self) -> None:
            ended.append(2)

    watches = Watches(lambda _: Slow(), 60.0, ["g"])
    watch = watches.of("g")
    assert watch is not None
    ready.set()
    watches.close()
    assert ended == [1, 2]


def test_groups_that_do_not_exist_take_no_place(two: GroupReading) -> None:
    """There is a limit, and it concerns names that somebody still asks for."""
    source = Source(two)
    source.turn.release(10_000)
    watches = Watches(source, 60.0, ["always"])
    names = [f"g{i}" for i in range(30)]
    assert [watches.of(name) is not None for name in names].count(True) == 19
    assert watches.of("always") is not None
    watches.close()
