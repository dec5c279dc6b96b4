"""The live page in a real browser, on a real broker and real tables."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kafka.admin import KafkaAdminClient
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from assignors import key_hash
from commits import CommitStore, Pending
from commits.model import PARKED_MS
from coopconsume.admin.client import Admin
from coopconsume.admin.overview.reader import GroupReader, GroupReading
from coopconsume.cli import main
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options
from coopconsume.runtime.decisions import decided
from coopconsume.sinks import open_dead_letters
from coopconsume.testing.local.broker import LocalKafka
from coopconsume.ui.page import LivePage
from coopconsume.worker.report import DeadLetter
from tests.browser import open_browser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.broker, pytest.mark.browser]

ROOT = Path(__file__).parents[2]
PATIENCE = 150.0
HALF, TOP = 2**62, 2**63 - 1
#: Texts of users that would run if they were parsed.
SCRIPT = "<script>document.title = 'broken'</script>"
IMAGE = "<img src=x onerror=\"document.title = 'broken'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """One browser for the module."""
    browser = open_browser()
    browser.set_page_load_timeout(PATIENCE)
    browser.set_script_timeout(PATIENCE)
    yield browser
    browser.quit()


@pytest.fixture
def chrome(browser: Chrome) -> Chrome:
    """The browser on an empty page with an empty console: no page before it asks for more."""
    browser.get("about:blank")
    errors(browser)
    return browser


@pytest.fixture
def shop(kafka, topic, produce, tmp_path) -> dict[str, Any]:
    """The group shop on two partitions: a parked record, a failed one, and two dead letters."""
    orders = topic(2)
    key = f"customer {SCRIPT}".encode()
    for partition in (0, 1):
        produce(orders, [(key, b"v%d" % offset) for offset in range(20)], partition)
    words = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "commitTable": str(tmp_path / "commits"), "deadLetter": str(tmp_path / "dead"),
    }  # fmt: skip
    options = Options.parse({**words, "kafka.group.id": "shop"})
    with closing(Cluster(options)) as cluster:
        store = CommitStore.open(tmp_path / "commits", cluster=cluster.cluster_id)
        ids = cluster.topic_ids([orders])
    shares = {"first": [(orders, 0, 0, HALF - 1)], "second": [(orders, 0, HALF, TOP), (orders, 1)]}
    epoch = store.open_epoch("shop", shares, previous=None)
    letters = [
        DeadLetter(
            orders, 0, o, key, b"v", 77, ((IMAGE, b"h"),), 2, f"no {IMAGE}", f"trace {IMAGE}"
        )
        for o in (1, 3)
    ]
    with closing(open_dead_letters(words["deadLetter"], options)) as sink:
        sink.append(letters, ids, "run-0")
    parked = Pending(1, key_hash(key), 2, PARKED_MS, f"no {IMAGE}")
    pending = [parked, Pending(5, 8, 1, 1, "again")]
    done = {(orders, 0): [(0, 0), (2, 4), (6, 9)]}
    store.commit("shop", epoch, "first", done, pending={(orders, 0): pending}, commit_id="run-0")
    return {"words": words, "topic": orders, "store": store, "epoch": epoch}


def until(chrome: Chrome, is_it: Callable[[Chrome], Any]) -> Any:
    """Waits for a condition on the page."""
    return WebDriverWait(chrome, PATIENCE, poll_frequency=0.1).until(is_it)


def text(chrome: Chrome, name: str) -> str:
    """The text of an element, at one moment; empty on a page without it, as the entry page."""
    script = "return document.getElementById(arguments[0])?.innerText ?? ''"
    return str(chrome.execute_script(script, name))


def has(name: str, part: str) -> Callable[[Chrome], bool]:
    """Whether the text of an element has a part."""
    return lambda chrome: part in text(chrome, name)


def run_as_shown(command: str) -> str:
    """What a command of the page prints, without a change of it."""
    name, *words = shlex.split(command)
    result = CliRunner().invoke(main, words)
    assert (name, result.exit_code) == ("coopconsume", 0), result.output
    return result.stdout


def click(chrome: Chrome, name: str) -> None:
    """Clicks on an element, once it can be clicked on."""
    element = until(chrome, lambda found: found.find_element(By.ID, name))
    until(chrome, lambda _: element.is_displayed() and element.is_enabled())
    element.click()


def press(chrome: Chrome, selector: str) -> None:
    """Clicks on an element at once: the page may replace it between two calls."""
    until(
        chrome,
        lambda found: found.execute_script(
            "const found = document.querySelector(arguments[0]); found?.click(); return !!found",
            selector,
        ),
    )


@contextmanager
def phone(chrome: Chrome) -> Iterator[None]:
    """Lets a page have the width of a phone."""
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def widest(chrome: Chrome, *selectors: str) -> float:
    """How far right the widest of some elements goes, with what it would scroll to."""
    return float(
        chrome.execute_script(
            "return Math.max(...[...document.querySelectorAll(arguments[0])].map("
            "(one) => one.getBoundingClientRect().left + one.scrollWidth))",
            ",".join(selectors),
        )
    )


def colours(chrome: Chrome, selector: str) -> set[str]:
    """The colours in the lowest line of a canvas; none before it is drawn."""
    return set(
        chrome.execute_script(
            "const c = document.querySelector(arguments[0]);"
            "if (!c?.width) return [];"
            "const d = c.getContext('2d').getImageData(0, c.height - 2, c.width, 1).data;"
            "return Array.from({length: d.length / 4}, (_, i) => d.slice(4 * i, 4 * i + 3).join())",
            selector,
        )
    )


def errors(chrome: Chrome) -> list[str]:
    """What the console says since the last call."""
    return [entry["message"] for entry in chrome.get_log("browser")]


def test_a_group_is_shown_and_texts_of_users_stay_texts(chrome, shop) -> None:
    """Members, key ranges, maps, blockers and letters; nothing of a record or an error runs."""
    with LivePage(shop["words"], "shop", interval=0.3) as page:
        chrome.get(page.url)
        until(chrome, has("blockers", SCRIPT))  # its key is read once it has blocked for a while
        assert "token" not in chrome.current_url
        # Kafka lists no member.
        until(chrome, has("also", "UTC: 11 records behind "))
        assert "1 key waits for your decision since " in text(chrome, "also")
        sentence = text(chrome, "sentence")
        assert sentence.startswith("Nobody has worked on this group since ")
        assert "UTC: 12 records wait" in sentence
        assert chrome.find_element(By.ID, "verdict").get_attribute("class") == "action"
        assert text(chrome, "group") == "shop"
        assert f"no {IMAGE}" in text(chrome, "blockers")
        assert "parked" in text(chrome, "blockers")
        assert "first" in text(chrome, "members")
        rows = text(chrome, "partitions").splitlines()
        assert any(row.startswith(f"{shop['topic']}-0") for row in rows), rows
        until(chrome, lambda found: found.find_elements(By.CSS_SELECTOR, "#rates path"))
        # The maps have the colours of the parked and the failed record.
        drawn = {"86,180,233", "176,32,122", "213,94,0"}
        until(chrome, lambda found: drawn <= colours(found, "#partitions td:nth-child(3) canvas"))
        click(chrome, "load")
        until(chrome, has("letters", f"no {IMAGE}"))
        assert not chrome.find_element(By.ID, "replay").is_displayed()
        press(chrome, "#letters button")
        until(chrome, has("letter-trace", f"trace {IMAGE}"))
        assert IMAGE in text(chrome, "letter-facts")
        press(chrome, "#letter-dialog form button")
        # The name of a partition stays while its figures change.
        name = chrome.find_element(By.CSS_SELECTOR, "#partitions button")
        shop["store"].commit("shop", shop["epoch"], "second", {(shop["topic"], 0): [(10, 12)]})
        lag = "return document.querySelector('#partitions tbody tr')?.cells[5].innerText"
        until(chrome, lambda found: found.execute_script(lag) == "9")
        assert name.is_displayed()
        press(chrome, "#partitions button")
        until(chrome, has("partition-legend", "parked 1"))
        # It is no label of the axis, where it would stand at another offset.
        assert text(chrome, "partition-name").endswith("-0, stable offset 1")
        assert text(chrome, "partition-axis").split() == ["offset", "0", "end", "20"]
        assert "no <img" in text(chrome, "partition-failed")
        press(chrome, "#partition-dialog form button")
        # From a blocked key to its letter, and to the map of its partition.
        command = "return document.querySelector(`${arguments[0]} code`).textContent"
        blocked = f"'{shop['topic']}-0@1'"
        press(chrome, f"#blocked-keys button[data-decide={blocked}]")
        for action in ("retry", "skip"):
            shown = f"#decide-choices dd:nth-of-type({1 if action == 'retry' else 2})"
            line = chrome.execute_script(command, shown)
            assert line.startswith(f"coopconsume records {action} shop ")
            assert "dry run" in run_as_shown(line)
        assert "records park" not in text(chrome, "decide-choices"), "it is parked"
        press(chrome, "#decide-dialog form button")
        chrome.execute_script("document.getElementById('letter-trace').replaceChildren()")
        # What somebody has to act on comes before the pictures.
        tops = chrome.execute_script(
            "return ['verdict', 'blocked-keys', 'rates'].map("
            "(name) => document.getElementById(name).getBoundingClientRect().top)"
        )
        assert tops == sorted(tops)
        press(chrome, f"#blocked-keys button[data-letter={blocked}]")
        until(chrome, has("letter-trace", f"trace {IMAGE}"))
        press(chrome, "#letter-dialog form button")
        with phone(chrome):
            # What is stuck, since when, and who must act is seen without a move to the side.
            until(chrome, lambda found: 0 < widest(found, "#blocked-keys td") <= 390)
            assert "records behind" in chrome.execute_script(
                "return [...document.querySelectorAll('#blocked-keys td')].map("
                "(one) => getComputedStyle(one, '::before').content).join()"
            )
            press(chrome, f"#blocked-keys button[data-decide={blocked}]")
            assert 0 < widest(chrome, "#decide-choices dd") <= 390, "each command is there whole"
            press(chrome, "#decide-dialog form button")
            press(chrome, f"#blocked-keys button[data-map={blocked}]")
            opened = "return document.getElementById('partition-dialog').open"
            until(chrome, lambda found: found.execute_script(opened))
            until(chrome, lambda found: 0 < widest(found, "#partition-dialog canvas") < 390)
            assert widest(chrome, "html", "body", "header", "#groups a", "main") <= 390
            # A record that is parked is in a column of its own, also where columns are fewer.
            until(chrome, lambda found: "176,32,122" in colours(found, "#partition-map"))
            press(chrome, "#partition-dialog form button")
        # A claimant may work: what remains is the decision, with its letters and its record.
        shop["store"].claim("shop", "somebody", [(shop["topic"], 1)], takeover=True)
        until(chrome, has("sentence", "UTC: 8 records behind "))
        assert f"{shop['topic']}-0@1" in run_as_shown(chrome.execute_script(command, "#next"))
        record = f"#next button[data-record='{shop['topic']}-0@1']"
        assert SCRIPT in chrome.find_element(By.CSS_SELECTOR, record).text
        press(chrome, record)
        until(chrome, lambda found: found.find_element(By.ID, "partition-dialog").is_displayed())
        press(chrome, "#partition-dialog form button")
        chrome.execute_script("document.getElementById('letters').replaceChildren()")
        press(chrome, "#next button")
        until(chrome, has("letters", f"no {IMAGE}"))
        assert "shop" in chrome.title
        assert not chrome.find_elements(By.CSS_SELECTOR, "main img, main script, dialog img")
        assert errors(chrome) == []  # before the server ends: the page asks on


@pytest.mark.parametrize("action", ["replay", "discard"])
def test_letters_are_decided_on_after_a_question(chrome, shop, action) -> None:
    """Nothing is decided before the answer; the decision is that of the command line."""
    orders, store = shop["topic"], shop["store"]
    with LivePage(shop["words"], "shop", interval=0.3, allow_decisions=True) as page:
        chrome.get(page.url)
        until(chrome, has("group", "shop"))
        click(chrome, "load")
        until(chrome, has("letters-count", "1 parked, 1 open"))
        press(chrome, "#letters thead input")
        click(chrome, action)
        until(chrome, has("confirm-text", "1 parked record will"))
        assert "1 passed record will" in text(chrome, "confirm-text")
        click(chrome, "confirm-no")
        until(chrome, lambda found: not found.find_element(By.ID, "confirm-dialog").is_displayed())
        assert not decided(store, "shop", [orders])
        click(chrome, action)
        until(chrome, lambda found: found.find_element(By.ID, "confirm-dialog").is_displayed())
        chrome.find_element(By.ID, "decision-reason").send_keys("the card is valid")
        chrome.find_element(By.ID, "decision-by").send_keys("alice")
        click(chrome, "confirm-yes")
        until(chrome, has("letters-count", ": 2."))
    (decision,) = decided(store, "shop", [orders])
    assert (decision.offset, decision.action) == (1, action)
    assert (decision.by.name, decision.by.reason) == ("alice", "the card is valid")


def test_a_decision_whose_letters_have_changed_is_not_carried_out(chrome, shop) -> None:
    """It was confirmed for others."""
    with LivePage(shop["words"], "shop", interval=0.3, allow_decisions=True) as page:
        chrome.get(page.url)
        until(chrome, has("group", "shop"))
        answer = chrome.execute_async_script(
            "const [topic, answer] = arguments;"
            "(async () => {"
            "  const session = await (await fetch('api/session')).json();"
            "  const letters = [{topic, partition: 0, offset: 1, commit: 'run-0'}];"
            "  const confirmed = {parked: 7, passed: 0};"
            "  const found = await fetch('api/groups/shop/decide', {"
            "    method: 'POST', headers: {'X-Coopconsume-CSRF': session.csrf},"
            "    body: JSON.stringify({action: 'discard', letters, confirmed})});"
            "  answer([found.status, (await found.json()).error]);"
            "})();",
            shop["topic"],
        )
    assert answer[0] == 409
    assert "confirm again" in answer[1]
    assert not decided(shop["store"], "shop", [shop["topic"]])


def test_a_table_that_goes_away_and_comes_back(chrome, shop, tmp_path) -> None:
    """The page says so, keeps the last status and recovers by itself."""
    with LivePage(shop["words"], "shop", interval=0.3) as page:
        chrome.get(page.url)
        until(chrome, has("group", "shop"))
        (tmp_path / "commits").rename(tmp_path / "away")
        until(chrome, has("banner", "trying again"))
        assert str(tmp_path / "commits") in text(chrome, "banner")
        assert text(chrome, "group") == "shop"
        assert "status of" in text(chrome, "fresh")
        (tmp_path / "away").rename(tmp_path / "commits")
        until(chrome, lambda found: not text(found, "banner"))
        assert "updated" in text(chrome, "fresh")
    until(chrome, has("banner", "does not answer"))


def test_a_reading_that_does_not_end_is_seen(chrome, shop, monkeypatch) -> None:
    """As with a broker that is frozen: the status is not shown as a new one."""
    go_on, read = threading.Event(), GroupReader.read

    def waiting(reader: GroupReader) -> GroupReading:
        assert not held.is_set() or go_on.wait(PATIENCE)
        return read(reader)

    held = threading.Event()
    monkeypatch.setattr(GroupReader, "read", waiting)
    with LivePage(shop["words"], "shop", interval=0.3) as page:
        chrome.get(page.url)
        until(chrome, has("fresh", "updated"))
        until(chrome, has("cards", "unknown in"))
        held.set()
        until(chrome, has("fresh", "status of"))
        assert text(chrome, "banner") == ""
        go_on.set()
        until(chrome, has("fresh", "updated"))


def test_another_group_is_not_shown_with_what_is_known_of_the_last_one(
    chrome, shop, monkeypatch
) -> None:
    """Neither with its time, nor with its dead letters if they come late."""
    go_on, look, read = threading.Event(), Admin.dead_letters, GroupReader.read

    def late_letters(admin: Admin, group: str) -> object:
        assert go_on.wait(PATIENCE)
        return look(admin, group)

    def late_status(reader: GroupReader) -> GroupReading:
        found = read(reader)
        assert found.overview.group == "shop" or go_on.wait(PATIENCE)
        return found

    monkeypatch.setattr(Admin, "dead_letters", late_letters)
    monkeypatch.setattr(GroupReader, "read", late_status)
    shop["store"].open_epoch("bar", {"m": [(shop["topic"], 0)]}, previous=None)
    try:
        with LivePage(shop["words"], "shop", interval=0.3) as page:
            chrome.get(page.url)
            until(chrome, has("fresh", "updated"))
            click(chrome, "load")
            until(chrome, has("letters-count", "reading"))
            chrome.execute_script("location.hash = '#bar'")
            until(chrome, lambda found: "bar" in found.title)
            assert text(chrome, "fresh") == "reading…"
            go_on.set()
            until(chrome, has("group", "bar"))
            until(chrome, has("fresh", "updated"))
            assert text(chrome, "under") == "1 partition, one line each"
            # Kafka knows no member of it.
            assert text(chrome, "cards").split("Members")[1].split()[0] == "0"
            # All answers are here once a later one is.
            click(chrome, "load")
            until(chrome, has("letters", "There are no such dead letters"))
            assert IMAGE not in text(chrome, "letters")
            assert errors(chrome) == []
    finally:
        go_on.set()


@pytest.mark.slow
def test_a_broker_that_goes_away_and_comes_back(chrome, tmp_path) -> None:
    """As with a table."""
    with LocalKafka() as kafka:
        kafka.create_topic("orders", 1)
        words = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers, "commitTable": str(tmp_path / "c"),
            "kafka.request.timeout.ms": "2000",
        }  # fmt: skip
        with closing(Cluster(Options.parse({**words, "kafka.group.id": "g"}))) as cluster:
            store = CommitStore.open(tmp_path / "c", cluster=cluster.cluster_id)
        store.open_epoch("g", {"m": [("orders", 0)]}, previous=None)
        with LivePage(words, "g", interval=0.3) as page:
            chrome.get(page.url)
            until(chrome, has("group", "g"))
            kafka.kill()
            until(chrome, has("banner", kafka.bootstrap_servers))
            assert text(chrome, "group") == "g"
            kafka.restart()
            until(chrome, lambda found: not text(found, "banner"))


def test_a_thousand_partitions_stay_quick(chrome, kafka, topic, tmp_path) -> None:
    """The page shows a part of the rows, and a square for each partition."""
    many = topic(1_000)
    words = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "commitTable": str(tmp_path / "c"),
    }  # fmt: skip
    with closing(Cluster(Options.parse({**words, "kafka.group.id": "g"}))) as cluster:
        store = CommitStore.open(tmp_path / "c", cluster=cluster.cluster_id)
    store.open_epoch("g", {f"m{i}": [(many, p) for p in range(i, 1_000, 4)] for i in range(4)},
                     previous=None)  # fmt: skip
    try:
        with LivePage(words, "g", interval=0.3) as page:
            chrome.get(page.url)
            until(chrome, has("pager", "50 of 1,000"))
            assert len(chrome.find_elements(By.CSS_SELECTOR, "#partitions tbody tr")) == 50
            assert chrome.find_element(By.ID, "grid").size["height"] > 50
            press(chrome, "#pager button:last-child")
            until(chrome, has("pager", "100 of 1,000"))
            Select(chrome.find_element(By.ID, "sort")).select_by_value("lag")
            chrome.find_element(By.ID, "find").send_keys("-99")
            until(chrome, lambda found: f"{many}-990" in text(found, "partitions"))
            assert "1,000 partitions, a line for one of 9" in text(chrome, "under")
            assert chrome.find_element(By.ID, "ranges").size["height"] < 450
            nodes = chrome.execute_script("return document.querySelectorAll('*').length")
            assert nodes < 3_000
            sizes = chrome.execute_script(
                "return performance.getEntriesByType('resource')"
                ".filter((one) => one.name.includes('/status')).map((one) => one.transferSize)"
            )
            assert sizes
            assert max(sizes) < 60_000
    finally:
        with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
            admin.delete_topics([many])


def test_the_command_serves_the_page_until_it_is_interrupted(chrome, shop) -> None:
    """It prints the address; a table without groups is no error."""
    words = [word for name, value in shop["words"].items() for word in ("-o", f"{name}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "coopconsume", "ui", "--port", "0", *words],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("live page: http://127.0.0.1:")
        chrome.get(line.removeprefix("live page: ").strip())
        until(chrome, has("groups", "shop"))  # the first group is chosen
        title = chrome.execute_script("return document.querySelector('#groups a').title")
        assert "12 records wait. If you run its job, start it" in title, "its verdict"
        until(chrome, has("group", "shop"))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def test_a_group_that_does_not_exist_is_named(chrome, shop) -> None:
    """With the groups that there are; it appears once it exists."""
    with LivePage(shop["words"], "shopp", interval=0.3) as page:
        chrome.get(page.url)
        until(chrome, has("banner", "did you mean 'shop'?"))
        shop["store"].open_epoch("shopp", {"m": [(shop["topic"], 0)]}, previous=None)
        until(chrome, has("group", "shopp"))
        assert text(chrome, "banner") == ""
