"""``coopconsume kv``."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from coopconsume.cli.exit_codes import example, reported
from coopconsume.cli.kv_store import KeyValueStore
from coopconsume.cli.place import at_a_cluster
from coopconsume.errors.fenced import FencedLogError

if TYPE_CHECKING:
    from collections.abc import Callable

#: The arguments and the method of each command.
_COMMANDS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "get": (("KEY",), KeyValueStore.get),
    "put": (("KEY", "VALUE"), KeyValueStore.put),
    "delete": (("KEY",), KeyValueStore.delete),
    "cas": (("KEY", "EXPECTED", "VALUE"), KeyValueStore.compare_and_set),
    "all": ((), KeyValueStore.local),
    "resign": ((), KeyValueStore.resign),
}
_WITHOUT_ANSWER = {"put", "delete", "resign"}
_USAGE = "; ".join(" ".join((word, *args)) for word, (args, _) in _COMMANDS.items()) + "; quit"


@click.command(
    epilog=example("coopconsume kv seats --create --owner one --bootstrap-servers localhost:9092")
)
@click.argument("topic")
@click.option(
    "--partition", type=click.IntRange(0), default=0, show_default=True,
    help="The partition that is the commit log.",
)  # fmt: skip
@click.option("--create", is_flag=True, help="Create a compacted topic if it does not exist.")
@click.option("--owner", help="Name of this replica [default: host and process].")
@click.option(
    "--lease", type=click.FloatRange(0.5), default=10.0, show_default=True,
    help="Seconds without a heartbeat after which another replica becomes the leader.",
)  # fmt: skip
@at_a_cluster
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document per line.")
@reported
def kv(
    *,
    topic: str,
    partition: int,
    create: bool,
    owner: str | None,
    lease: float,
    options: dict[str, str],
    as_json: bool,
) -> None:
    """Run a replica of a key-value store whose commit log is a partition of a topic.

    Start several replicas: one is the leader and answers, the others follow. When the leader ends,
    is killed or resigns, another replica becomes the leader. Each replica reads commands from
    standard input, one per line: get KEY; put KEY VALUE; delete KEY; cas KEY EXPECTED VALUE
    (compare and set); all (the contents of this replica); resign; quit. In commands and answers a
    bare - means "no value"; the value - is written '-', and the empty value ''.
    """
    say = _Output(as_json=as_json)
    if create:
        _make_topic(options, topic)
    store = KeyValueStore(
        options, topic, partition, owner=owner, lease=lease,
        on_elected=lambda leader: say.event("leads", epoch=leader.epoch),
        on_lost=lambda: say.event("follows"),
    )  # fmt: skip
    say.event("started")  # before the events of the election
    with store:
        for line in sys.stdin:
            words = parse(line)
            if words == ["quit"]:
                return
            if words:
                say.answer(_answer(store, words))


def parse(line: str) -> list[str | None]:
    """Splits a command into words; a bare ``-`` (no value) becomes None."""
    try:
        words = shlex.split(line)
        bare = shlex.split(line, posix=False)
    except ValueError as error:
        return [f"({error})"]
    if len(bare) != len(words):
        return [*words]
    return [None if raw == "-" else word for word, raw in zip(words, bare, strict=True)]


def _answer(store: KeyValueStore, words: list[str | None]) -> dict[str, Any]:
    word, *given = words
    needed = [text for i, text in enumerate(given) if (word, i) != ("cas", 1)]
    if word not in _COMMANDS or len(given) != len(_COMMANDS[word][0]) or None in needed:
        return {"error": "Usage", "text": f"commands: {_USAGE}"}
    try:
        answer = _COMMANDS[word][1](store, *given)
    except FencedLogError as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"done": True} if word in _WITHOUT_ANSWER else {"answer": answer}


def shown(answer: Any) -> str:
    """Returns an answer as text that distinguishes no value from each value."""
    if isinstance(answer, dict):
        lines = (f"{key} = {shown(answer[key])}" for key in sorted(answer))
        return "\n".join(lines) or "(nothing)"
    if isinstance(answer, str):
        return "'-'" if answer == "-" else shlex.quote(answer)
    return {None: "-", True: "set", False: "not set"}[answer]


class _Output:
    """Writes lines from several threads."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._lock = threading.Lock()

    def event(self, what: str, **facts: Any) -> None:
        """Writes an event of this replica."""
        more = "".join(f", {name} {value}" for name, value in facts.items())
        self._write({"event": what} | facts, f"# {what}{more}")

    def answer(self, found: dict[str, Any]) -> None:
        """Writes the result of a command."""
        if "error" in found:
            self._write(found, found["text"])
            return
        self._write(found, "done" if "done" in found else shown(found["answer"]))

    def _write(self, document: dict[str, Any], text: str) -> None:
        with self._lock:
            click.echo(json.dumps(document) if self._as_json else text)


def _make_topic(options: dict[str, str], topic: str) -> None:
    from kafka.admin import KafkaAdminClient

    from coopconsume.fenced.config import FencedSettings
    from coopconsume.kafka.creation import make_topic

    with closing(KafkaAdminClient(**FencedSettings.parse(options).client_config())) as admin:
        make_topic(admin, topic, 1, {"cleanup.policy": "compact"})
