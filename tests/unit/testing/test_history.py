"""The recorder and the reader: what a call wrote is read, whatever happened to its process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from coopconsume.record import Record, Reject, Retry
from coopconsume.state.value import State
from coopconsume.testing.history import CorruptHistory, History, Recorder, read_history
from coopconsume.testing.history.recorder import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Damage = Callable[[list[bytes]], list[bytes]]

RECORD = Record("flights", 2, 41, b"N14228", b"{}", 0)


def only_file(directory: Path) -> Path:
    """The one file that one process made."""
    (path,) = directory.iterdir()
    return path


def test_a_call_reads_back_as_it_was(tmp_path: Path) -> None:
    """Every field of a call survives the file, with the times in order."""
    recorder = Recorder(tmp_path)
    number = recorder.started(RECORD._replace(attempt=3), slot=5)
    recorder.finished(number, "retry", "ValueError: no")
    (call,) = read_history(tmp_path)
    assert (call.topic, call.partition, call.offset, call.key) == ("flights", 2, 41, b"N14228")
    assert (call.slot, call.attempt, call.outcome) == (5, 3, "retry")
    assert call.error == "ValueError: no"
    assert call.thread == threading.get_native_id()
    assert call.process.split("-")[0] == str(os.getpid())
    assert call.end_ns is not None
    assert call.start_ns <= call.end_ns


def test_what_a_handler_saw_and_left_of_its_state_reads_back(tmp_path: Path) -> None:
    """A failed call leaves nothing; values that a state gives back are equal to those set."""
    state = State(None)
    with Recorder(tmp_path).call(RECORD, state=state):
        state.set({"n": 2, "none": None})
    with suppress(ValueError), Recorder(tmp_path).call(RECORD, state=state):
        state.clear()
        raise ValueError
    found = [(call.saw, call.left) for call in read_history(tmp_path)]
    assert found == [("-", fingerprint({"n": 2.0})), (fingerprint({"n": 2}), "")]
    assert fingerprint([("a", 1)]) == fingerprint([["a", 1]]) != fingerprint([["a", "1"]])
    assert len(fingerprint(b"")) == 16


@pytest.mark.parametrize("key", [None, b"", b"-", b"\t\n\x00\xff", b"k" * 3000])
def test_any_key_reads_back(tmp_path: Path, key: bytes | None) -> None:
    """No key, the empty key and any bytes are distinguished."""
    with Recorder(tmp_path).call(RECORD._replace(key=key)):
        pass
    assert [call.key for call in read_history(tmp_path)] == [key]


@pytest.mark.parametrize("topic", ["-", "a.b_c-d", "1", "x" * 249])
def test_any_topic_reads_back(tmp_path: Path, topic: str) -> None:
    """Every name that Kafka allows a topic survives, numbers too."""
    with Recorder(tmp_path).call(RECORD._replace(topic=topic)):
        pass
    assert [call.topic for call in read_history(tmp_path)] == [topic]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Reject("bad"), "reject"),
        (Retry(), "retry"),
        (ValueError("x"), "retry"),
        (SystemExit(3), "retry"),
    ],
)
def test_what_a_handler_raises_is_the_outcome(
    tmp_path: Path, error: BaseException, outcome: str
) -> None:
    """An exception leaves the context as it came and names the outcome."""
    with pytest.raises(type(error)), Recorder(tmp_path).call(RECORD):
        raise error
    (call,) = read_history(tmp_path)
    assert call.outcome == outcome
    assert call.error == f"{type(error).__name__}: {error}"


def test_what_a_handler_returns_is_settled_by_name(tmp_path: Path) -> None:
    """An answer that is returned is recorded as `settle` says."""
    with Recorder(tmp_path).call(RECORD) as call:
        call.settle("reject", "no such aircraft")
    (found,) = read_history(tmp_path)
    assert (found.outcome, found.error) == ("reject", "no such aircraft")


def test_error_text_cannot_break_a_line(tmp_path: Path) -> None:
    """Tabs, newlines, quotes and lone surrogates of an error stay within its field, cut short."""
    recorder = Recorder(tmp_path)
    recorder.finished(recorder.started(RECORD), "retry", 'a\tb\n"c\udc80é' + "x" * 1000)
    with recorder.call(RECORD._replace(offset=42)):
        pass
    first, second = read_history(tmp_path)
    assert first.error.startswith('a\\tb\\n"c\\udc80\\xe9xxx')
    assert len(first.error) == 200
    assert (second.offset, second.error) == (42, "")


def test_a_call_without_end_is_running(tmp_path: Path) -> None:
    """A call that never reported its end has neither end nor outcome."""
    Recorder(tmp_path).started(RECORD)
    (call,) = read_history(tmp_path)
    assert call.end_ns is None
    assert call.outcome is None


def test_recorders_of_one_process_share_a_file(tmp_path: Path) -> None:
    """Unpickling a recorder for every batch opens no further file."""
    recorder = Recorder(tmp_path)
    for offset in range(5):
        with pickle.loads(pickle.dumps(recorder)).call(RECORD._replace(offset=offset)):
            pass
    assert only_file(tmp_path)
    assert [call.offset for call in read_history(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_closed_recorder_goes_on_in_a_new_file(tmp_path: Path) -> None:
    """Closing leaves what was written, and a later call is recorded as well."""
    recorder = Recorder(tmp_path)
    for offset in range(2):
        with recorder.call(RECORD._replace(offset=offset)):
            pass
        recorder.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert [call.offset for call in read_history(tmp_path)] == [0, 1]


def test_threads_share_a_file_without_mixing(tmp_path: Path) -> None:
    """Calls of eight threads at once all read back whole, each with its own end."""
    recorder = Recorder(tmp_path)

    def work(slot: int) -> None:
        for offset in range(200):
            with recorder.call(RECORD._replace(partition=slot, offset=offset), slot):
                pass

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = list(read_history(tmp_path))
    assert only_file(tmp_path)
    assert {(c.partition, c.offset) for c in calls} == {
        (s, o) for s in range(8) for o in range(200)
    }
    assert all(c.slot == c.partition and c.end_ns is not None for c in calls)
    assert len({(c.slot, c.thread) for c in calls}) == 8


def test_a_forked_process_writes_a_file_of_its_own(tmp_path: Path) -> None:
    """A child of a process that already records has its own file, number and process name."""
    script = (
        "import os, sys\n"
        "from coopconsume.testing.history.recorder import Recorder\n"
        "from coopconsume.record import Record\n"
        "recorder, record = Recorder(sys.argv[1]), Record('t', 0, 0, None, b'', 0)\n"
        "with recorder.call(record):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        with recorder.call(record._replace(offset=1)):\n"
        "            os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=600)
    parent, child = read_history(tmp_path)
    assert (parent.offset, parent.outcome) == (0, "done")
    assert (child.offset, child.outcome) == (1, None)
    assert parent.process != child.process


def test_a_killed_process_loses_only_the_call_it_was_in(tmp_path: Path) -> None:
    """After SIGKILL at any moment all calls but the last have an end, and none is missing."""
    script = (
        "import itertools, sys\n"
        "from coopconsume.testing.history.recorder import Recorder\n"
        "from coopconsume.record import Record\n"
        "recorder = Recorder(sys.argv[1])\n"
        "for offset in itertools.count():\n"
        "    with recorder.call(Record('t', 0, offset, b'k', b'', 0)):\n"
        "        if offset == 2000: print('going', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"going\n"
        process.send_signal(signal.SIGKILL)
    calls = list(read_history(tmp_path))
    assert len(calls) >= 2000
    assert [call.offset for call in calls] == list(range(len(calls)))
    assert all(call.outcome == "done" for call in calls[:-1])


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    """However much of the last line is missing, all before it is read."""
    recorder = Recorder(tmp_path)
    for offset in range(3):
        with recorder.call(RECORD._replace(offset=offset)):
            pass
    path = only_file(tmp_path)
    recorder.close()
    whole = path.read_bytes()
    for lost in range(1, len(whole.splitlines(keepends=True)[-1]) + 1):
        path.write_bytes(whole[:-lost])
        calls = list(read_history(tmp_path))
        assert [call.offset for call in calls] == [0, 1, 2]
        assert [call.outcome for call in calls] == ["done", "done", None]


def test_a_file_cut_within_its_first_line_holds_no_calls(tmp_path: Path) -> None:
    """A process that was killed as it opened its file has no calls."""
    (tmp_path / "calls-1-aa.tsv").write_bytes(b"event\tca")
    assert len(read_history(tmp_path)) == 0


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda lines: [b"something else\n", *lines[1:]], "first line is b'something else'"),
        (lambda lines: [*lines[:2], lines[2][:9], *lines[3:]], "olumns"),
        (lambda lines: [lines[0], *lines[2:]], "ends that never started"),
        (
            lambda lines: [line.replace(b"done", b"dome") for line in lines],
            "an outcome is not one of",
        ),
        (lambda lines: [line.replace(b"\t41\t", b"\tx\t") for line in lines], "conversion error"),
    ],
)
def test_damage_before_the_last_line_is_an_error(
    tmp_path: Path, damage: Damage, found: str
) -> None:
    """A file that no recorder wrote is refused, named, with what is wrong and what to do."""
    recorder = Recorder(tmp_path)
    for _ in range(2):
        with recorder.call(RECORD):
            pass
    path = only_file(tmp_path)
    recorder.close()
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(CorruptHistory, match=found) as caught:
        read_history(tmp_path)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.path == str(path)
    assert str(path) in str(error)
    assert "empty directory" in str(error)


def test_no_directory_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    """An empty recording is distinguished from a wrong path."""
    with pytest.raises(FileNotFoundError, match="missing"):
        read_history(tmp_path / "missing")
    assert len(read_history(tmp_path)) == 0


def test_calls_of_many_files_come_in_the_order_of_their_starts(tmp_path: Path) -> None:
    """Several processes' files make one history on one clock, the same as one made of its calls."""
    recorder = Recorder(tmp_path)
    for offset in range(30):
        with recorder.call(RECORD._replace(offset=offset, topic="ab"[offset % 2]), slot=offset % 4):
            pass
        if offset % 7 == 0:
            recorder.close()
    (tmp_path / "notes.txt").write_text("not a recorder's")
    history = read_history(tmp_path)
    assert [call.offset for call in history] == list(range(30))
    assert list(History.of(history)) == list(history)


def test_the_recorder_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """A worker without numpy and pyarrow can record."""
    script = (
        "import sys\n"
        "sys.modules['numpy'] = sys.modules['pyarrow'] = None\n"
        "from coopconsume.testing.history import Recorder\n"
        "from coopconsume.record import Record\n"
        "with Recorder(sys.argv[1]).call(Record('t', 0, 7, None, b'', 0)): pass\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=600)
    assert [call.offset for call in read_history(tmp_path)] == [7]
