"""The command line: usage, bad input, exit codes; nothing here starts Spark or a broker."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import click
import pytest
from click.testing import CliRunner
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from commits import (
    CommitLogUnavailable,
    CommitStore,
    CommitTableFormat,
    CommitTableNotFound,
    CorruptCommitLog,
    FencedMember,
)
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.admin.offsets import OffsetAdmin
from coopconsume.admin.overview import describe_group, list_groups
from coopconsume.admin.overview.reader import GroupReader
from coopconsume.admin.sql_source import CommitsSource, register_source
from coopconsume.admin.views import gaps_frame, partitions_frame
from coopconsume.cli import main, place
from coopconsume.cli.exit_codes import exit_code, reported
from coopconsume.cli.run import _Stopper
from coopconsume.errors import (
    BrokerUnreachable,
    CoopConsumeError,
    DataLoss,
    HandlerNotUsable,
    InvalidOption,
    UnknownOption,
)
from coopconsume.kafka.topics import describe_topics, set_shareable
from coopconsume.monitoring.screen import Rate, Screen, bar
from coopconsume.options import TABLE
from coopconsume.testing.local import session as sessions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

HANDLER = "tests_cli_handlers:work"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, with a module of handlers; nothing of it is left in this process."""
    (tmp_path / "tests_cli_handlers.py").write_text("def work(record): pass\nnothing = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.delitem(sys.modules, "tests_cli_handlers", raising=False)
    return tmp_path


#: Nobody listens there; a port that was free a moment ago may be somebody's by now.
CLOSED = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the session of the test run, which ``run`` would take, and so look for no Java."""
    for name in ("run", "catalog"):
        monkeypatch.setattr(f"coopconsume.cli.{name}.given_session", lambda: None)


def run(folder: Path, handler: str = HANDLER, *more: str, **changed: str | None) -> Result:
    """Call ``coopconsume run`` with good options, some of them changed or left out."""
    options: dict[str, str | None] = {
        "kafka.bootstrap.servers": CLOSED,
        "kafka.group.id": "g",
        "subscribe": "orders",
        "commitTable": str(folder / "commits"),
    }
    options |= {name.replace("_", "."): value for name, value in changed.items()}
    pairs = [f"{name}={value}" for name, value in options.items() if value is not None]
    arguments = [word for pair in pairs for word in ("-o", pair)]
    return CliRunner().invoke(main, ["run", handler, *arguments, *more])


def one_sentence(result: Result) -> str:
    """The error, which is all that was said and has no traceback."""
    text = result.stderr.strip()
    assert result.stdout == ""
    assert text.startswith("coopconsume: ")
    assert "Traceback" not in text
    return text


# -- usage -------------------------------------------------------------------------------------


def commands(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it, each with the words that call it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


@pytest.mark.parametrize("debug", [False, True])
def test_py4j_shows_no_traceback_of_a_jvm_that_is_gone(debug):
    """It logs by the root logger; the command's own error follows, in one sentence."""
    code = (
        "import click; from coopconsume.cli.exit_codes import reported\n"
        "source = 'import logging; logging.exception(\"Exception while sending command.\")'\n"
        "code = compile(source, 'py4j/java_gateway.py', 'exec')\n"
        "click.command()(reported(lambda: exec(code)))()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *(["--debug"] if debug else [])],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ("Exception while sending" in ran.stderr) == debug


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*c, id="-".join(c[0])) for c in commands()]
)
def test_help_describes_every_command(path: tuple[str, ...], command: click.Command) -> None:
    """Each command has a help text, its options have one, and the exit codes stand under it."""
    shown = CliRunner().invoke(main, [*path, "--help"])
    assert shown.exit_code == 0
    assert command.help
    without = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
    assert not without
    assert "fenced: another member owns the group" in shown.stdout
    assert "130  interrupted" in shown.stdout


def test_help_of_run_describes_all_options_of_the_consumer() -> None:
    """The error of an unknown option refers to it."""
    shown = " ".join(CliRunner().invoke(main, ["run", "--help"]).stdout.split())
    for option in TABLE:
        assert (f"{option.name}: {' '.join(option.doc.split())}" in shown) is option.is_listed


def test_all_commands_are_there() -> None:
    """No group of commands got lost."""
    known = {
        "broker",
        "dead-letters",
        "demo",
        "doctor",
        "exporter",
        "groups",
        "lag",
        "log",
        "offsets",
        "owners",
    }
    known |= {"queue", "records", "run", "state", "store", "topics", "ui"}
    assert set(main.commands) == known


def test_a_command_loads_what_it_needs() -> None:
    """Its help, the version and completions need no library, and no other command."""
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "command_starts.py"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_python_runs_the_package_as_the_command() -> None:
    """``python -m coopconsume`` has the version of the distribution."""
    done = subprocess.run(
        [sys.executable, "-m", "coopconsume", "--version"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert (done.returncode, done.stdout) == (0, f"coopconsume {project['version']}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "MODULE:FUNCTION"),
        (["run", "a:b", "-o", "subscribe"], "write it as key=value"),
        (["run", "a:b", "--ordering", "odd"], "'key', 'partition', 'none'"),
        (["broker", "--topic", "t:0"], "name:partitions"),
        (["broker", "--topic", "t:many"], "name:partitions"),
        (["broker", "--port", "99999"], "1<=x<=65535"),
        (["demo", "--records", "5"], "2000<=x<=336776"),
        (["nonsense"], "No such command"),
        (["laag"], "'lag'"),
        (["topics", "alter", "orders"], "--accept-range-fetch"),
        (["topics", "alter", "--accept-range-fetch"], "NAME..."),
        (["topics", "describe", "-o", "commitTable"], "write it as key=value"),
        (["groups", "describe"], "GROUP"),
        (["groups", "list", "--commit-table", "a", "-o", "committable=b"], "give one of both"),
        (["groups", "list", "--bootstrap-servers", "localhost:9092"], "commitTable"),
    ],
)
def test_wrong_usage_is_2(arguments: list[str], said: str) -> None:
    """Click's own errors say what is expected and exit with 2."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_how_a_command_is_called_is_shown_line_by_line() -> None:
    """The example under --help is one that a shell takes as it stands."""
    shown = CliRunner().invoke(main, ["groups", "describe", "--help"]).stdout
    assert (
        "  Example:\n"
        "    coopconsume groups describe shop \\\n"
        "        --bootstrap-servers localhost:9092 --commit-table /data/commits\n"
    ) in shown


# -- bad input to run --------------------------------------------------------------------------


def test_a_misspelt_option_names_the_closest(folder: Path) -> None:
    """One sentence with the right name, exit code 2, and no commit table was made."""
    result = run(folder, HANDLER, "-o", "comitTable=x")
    assert result.exit_code == 2
    assert "'commitTable'" in one_sentence(result)
    assert not (folder / "commits").exists()


def start_of_run(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException] = RuntimeError
) -> None:
    """Let ``run`` find a cluster with all topics, and end by an error where it starts Spark."""

    class Known:
        cluster_id = "c"

        def __init__(self, *_: object) -> None:
            pass

        topics = subscribed = close = check_topics = __init__

    def start(*_: object) -> None:
        raise error

    monkeypatch.setattr("coopconsume.kafka.cluster.Cluster", Known)
    monkeypatch.setattr("coopconsume.testing.local.java.find_java", lambda **_: None)
    monkeypatch.setattr("coopconsume.cli.run._local_session", start)


def test_a_table_of_a_catalog_is_left_to_spark(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a session yet, a name in a catalog is no error: Spark is started to open it."""
    start_of_run(monkeypatch)
    catalog = "spark.sql.catalog.main=org.example.Catalog"
    result = run(folder, HANDLER, "--spark-conf", catalog, commitTable="main.ops.commits")
    assert result.stderr.startswith("starting Spark\n")


def test_a_run_that_is_stopped_while_spark_starts_has_stopped_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager takes another code for a failure."""
    start_of_run(monkeypatch, KeyboardInterrupt)
    result = run(folder)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["starting Spark", "stopped before the job began"]


def test_a_table_in_the_catalog_of_a_session_that_ends_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer forgets the slash; the commits would be gone with each end of the command."""
    start_of_run(monkeypatch)
    result = run(folder, commitTable="commits")
    assert result.exit_code == 2
    assert "for a path write './commits'" in result.stderr


def test_a_commit_table_that_cannot_be_written_is_refused_before_spark_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job would wait for its disk for ever."""
    start_of_run(monkeypatch)
    assert run(folder).stderr.startswith("starting Spark\n")
    disk = MagicMock(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    result = run(folder)
    assert result.exit_code == 1
    assert "the file system is read-only" in one_sentence(result)


def test_a_missing_option_is_named(folder: Path) -> None:
    """Without a group nothing is tried."""
    result = run(folder, kafka_group_id=None)
    assert result.exit_code == 2
    assert "kafka.group.id" in one_sentence(result)


def test_all_missing_options_are_named_at_once(folder: Path) -> None:
    """Nobody has to try once for each of them."""
    (folder / "tests_cli_handlers.py").touch()
    result = CliRunner().invoke(main, ["run", HANDLER])
    assert result.exit_code == 2
    names = ("kafka.bootstrap.servers", "kafka.group.id", "subscribe", "commitTable")
    assert all(f"'{name}'" in one_sentence(result) for name in names)


_ROWS = ["--output-schema", "value string"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-attempts", "3"], "without dead_letter"),
        (["--on-dead", "park"], "park without dead_letter"),
        (["--output", "out"], "output_schema"),
        (_ROWS, "option output_schema = 'value string' without output: give output, too"),
        (["--output-mode", "merge"], "'merge' without output"),
        (["--ordering", "none", "-o", "maxRecordsPerSecondPerKey=1"], "it needs ordering='key'"),
        ([*_ROWS, "--output", "kafka:t", "--output-mode", "merge"], "it needs a Delta table"),
        ([*_ROWS, "--output", "out", "--output-mode", "transactional"], "it needs a topic"),
        ([*_ROWS, "--output", "kafka:t", "--output-mode", "transactional"], "'purgatory'"),
        ([*_ROWS, "--output", "kafka:"], "kafka:TOPIC"),
        (["--output-partition-by", "a"], "output_partition_by = ('a',) without output"),
        (
            [*_ROWS, "--output", "kafka:t", "--output-partition-by", "a, b"],
            "output_partition_by = ('a', 'b'): it needs a Delta table",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_starts(
    folder: Path, words: list[str], said: str
) -> None:
    """Neither the broker is asked nor Spark started."""
    result = run(folder, HANDLER, *words)
    assert result.exit_code == 2
    assert said in one_sentence(result)


def test_json_logs_stay_json(folder: Path) -> None:
    """An error that ends the command is a line of the log, too."""
    result = run(folder, HANDLER, "--log-format", "json", kafka_group_id=None)
    assert result.exit_code == 2
    (text,) = result.stderr.splitlines()
    assert text.startswith("{")
    line = json.loads(text)
    assert (line["level"], line["context"]["exitCode"]) == ("ERROR", 2)
    assert "'kafka.group.id' is missing" in line["msg"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-attempts", "0"], "--max-attempts 0: give at least 1, or leave it out"),
        (["--available-now", "--real-time", "5 minutes"], "--available-now"),
    ],
)
def test_wrong_usage_is_json_in_json_logs(folder: Path, words: list[str], said: str) -> None:
    """As soon as the options are read, and before Spark starts."""
    result = run(folder, HANDLER, "--log-format", "json", *words)
    assert result.exit_code == 2
    (text,) = result.stderr.splitlines()
    line = json.loads(text)
    assert line["context"]["exitCode"] == 2
    assert said in line["msg"]


@pytest.mark.parametrize("servers", ["localhost", "a:1,b", "a:port", "a:1,,b:70000"])
def test_an_address_without_a_port_is_wrong_usage(folder: Path, servers: str) -> None:
    """Kafka's clients in Java refuse it, and others take some port."""
    result = run(folder, kafka_bootstrap_servers=servers)
    assert result.exit_code == 2
    assert "host:port" in one_sentence(result)


def test_a_host_without_an_address_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped name is distinguished from a broker that does not answer."""
    monkeypatch.setattr("coopconsume.kafka.calls._CONNECT_MS", 500)
    result = run(folder, kafka_bootstrap_servers="no-such-host.invalid:9092")
    assert result.exit_code == 1
    assert "(no address is known for no-such-host.invalid)" in one_sentence(result)


def test_a_reader_that_stops_reading_is_no_error() -> None:
    """`| head` gets what it asked for: no message, and exit code 0."""
    reads, writes = os.pipe()
    os.close(reads)
    program = (
        "import click; from coopconsume.cli.exit_codes import reported\n"
        "click.command()(reported(lambda: [click.echo('line') for _ in range(9)] and None))()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=writes, stderr=subprocess.PIPE, text=True, timeout=600, check=False,
    )  # fmt: skip
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("Unable to copy data: No space left on device (os error 28)", "the disk is full"),
        ('Error: Os { code: 30, kind: ReadOnlyFilesystem, message: "…" }', "is read-only"),
        ("[Errno 13] Permission denied: '/data/commits'", "permission denied: let this user"),
        ("403 Forbidden", "403 Forbidden"),
    ],
)
def test_faults_of_a_disk_are_said_in_words(problem: str, said: str) -> None:
    """What to do about them, and nothing of the engine's own text."""
    error = CommitLogUnavailable("/data/commits", "append", problem)
    assert said in str(error)
    assert "os error" not in str(error)
    assert "Os {" not in str(error)
    # Only a write has a commit to repeat.
    assert "counts once" in str(error)
    read = CommitLogUnavailable("/data/commits", "read", problem)
    assert str(read).endswith("Try again once its storage answers")


@pytest.mark.parametrize("place", ["file/commits", "/proc/nowhere/commits"])
def test_a_mistyped_path_of_a_commit_table_is_said_in_words(tmp_path: Path, place: str) -> None:
    """As the engine refuses it."""
    (tmp_path / "file").touch()
    with pytest.raises(CommitLogUnavailable, match="check the path"):
        CommitStore.open(tmp_path / place, cluster="c")


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("no_such_module_anywhere:work", "no_such_module_anywhere"),
        ("tests_cli_handlers:absent", "no function absent"),
        ("tests_cli_handlers:nothing", "no function nothing"),
        ("tests_cli_handlers", "module:function"),
        ("tests_cli_handlers.py:work", "file, not a module; give module:function"),
        ("/home/me/tests_cli_handlers.py:work", "file, not a module; give module:function"),
    ],
)
def test_a_handler_that_cannot_be_used_is_2(folder: Path, handler: str, said: str) -> None:
    """It is looked for before anything is started, in the user's folder, too."""
    result = run(folder, handler)
    assert result.exit_code == 2
    assert said in one_sentence(result)
    assert "pickled" not in one_sentence(result)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--value", "jsn"], "option value = jsn: give a pydantic model"),
        (["--key", "tests_cli_handlers:absent"], "option key = tests_cli_handlers:absent: the mod"),
        (["--value", "tests_cli_handlers:nothing"], "option value = tests_cli_handlers:nothing"),
        (["--undecodable", "park"], "option undecodable = park without dead_letter"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_2(folder: Path, words: list[str], said: str) -> None:
    """It is looked for in the user's folder, as the handler, before anything is started."""
    result = run(folder, HANDLER, *words)
    assert result.exit_code == 2
    assert said in one_sentence(result)


@pytest.mark.parametrize("attempts", ["0", "-1"])
def test_a_wrong_retry_policy_is_wrong_usage(folder: Path, attempts: str) -> None:
    """It names the option, exit code 2."""
    result = run(folder, HANDLER, "--max-attempts", attempts)
    assert result.exit_code == 2
    assert f"--max-attempts {attempts}: give at least 1, or leave it out" in result.stderr


def test_no_broker_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the address; Spark was not started for it, and no table was made."""
    monkeypatch.setattr("coopconsume.kafka.calls._CONNECT_MS", 500)
    result = run(folder)
    assert result.exit_code == 1
    assert "no Kafka broker answers at 127.0.0.1:" in one_sentence(result)
    assert not (folder / "commits").exists()


def test_no_java_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found out first, and the sentence says what to install."""
    monkeypatch.setenv("JAVA_HOME", str(folder / "nowhere"))
    for result in (run(folder), CliRunner().invoke(main, ["broker"])):
        assert result.exit_code == 1
        assert "no Java found" in one_sentence(result)


def test_a_wrong_java_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says which release was found and which will do."""
    java = folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder / "jdk"))
    for result in (run(folder), CliRunner().invoke(main, ["demo"])):
        assert result.exit_code == 1
        assert "Java 11.0.2, but Spark 4 needs Java 17 to 21" in one_sentence(result)


def test_debug_shows_the_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--debug` an error is shown with its traceback."""
    monkeypatch.setenv("JAVA_HOME", str(folder / "nowhere"))
    result = run(folder, HANDLER, "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_what_a_record_brings_cannot_command_a_terminal() -> None:
    """Values of several lines stay readable; JSON has what there is."""

    @click.command()
    @click.option("--fails", is_flag=True)
    @reported
    @place.shown
    def shows(*, fails: bool) -> place.Shown:
        if fails:
            raise CoopConsumeError("bad \x1b[2Jkey")
        return place.Shown(lambda: ["\x1b"], ["value: \x1b[2J\ta\nb \x9b"])

    assert CliRunner().invoke(shows).stdout == "value: \\x1b[2J\ta\nb \\x9b\n"
    assert json.loads(CliRunner().invoke(shows, ["--json"]).stdout) == ["\x1b"]
    assert CliRunner().invoke(shows, ["--fails"]).stderr == "coopconsume: bad \\x1b[2Jkey\n"


# -- exit codes and the screen -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownOption("subscribee", "subscribe"), 2),
        (HandlerNotUsable("f", "because"), 2),
        (FencedMember("g", "m", None, None, "another epoch is in force"), 3),
        (DataLoss("t", 0, 1, 2), 4),
        (CorruptCommitLog("p", "why"), 4),
        (CommitTableFormat("p", "format 9", "format 1"), 1),
        (BrokerUnreachable("s", "c"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_errors_have_their_exit_codes(error: Exception, code: int) -> None:
    """A command that raises ends with the documented code and one line."""

    @click.command()
    @reported
    def fail() -> None:
        raise error

    result = CliRunner().invoke(fail, [])
    assert result.exit_code == code == exit_code(error)
    assert "Traceback" not in result.stderr


def test_interrupted_is_130() -> None:
    """Ctrl-C where no command has its own way of ending."""

    @click.command()
    @reported
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert CliRunner().invoke(interrupted, []).exit_code == 130


def test_signals_that_come_together_interrupt_a_command_once() -> None:
    """`timeout` sends SIGTERM twice: what a command does at its end is not interrupted."""
    both = {signal.SIGINT, signal.SIGTERM}

    @click.command()
    @reported
    def served() -> None:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:
                signal.raise_signal(number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        except KeyboardInterrupt:
            click.echo("closing")
            click.echo("closed")

    result = CliRunner().invoke(served, [])
    assert (result.exit_code, result.stdout) == (0, "closing\nclosed\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_signals_that_come_together_count_once() -> None:
    """`timeout` sends its signal to the command and to its group: that is no second Ctrl-C."""
    screen, query = MagicMock(), MagicMock()
    stopper = _Stopper(screen)
    stopper._count()
    stopper._count()
    query.awaitTermination.side_effect = [False, False, True]
    assert stopper.wait(query) == 0
    query.abort.assert_not_called()
    screen.line.assert_called_once_with("waiting for running handlers; Ctrl-C again leaves at once")


def test_a_signal_after_the_answer_to_the_first_leaves_at_once() -> None:
    """The answer says so."""
    screen, query = MagicMock(), MagicMock()
    stopper = _Stopper(screen)
    stopper._count()
    screen.line.side_effect = lambda text: stopper._count() if "again" in text else None
    query.awaitTermination.return_value = False
    assert stopper.wait(query) == 130
    query.abort.assert_called_once_with()


def test_a_terminal_has_one_line_that_moves() -> None:
    """Each status takes the last one's place, and a line is written in its stead."""
    stream = Terminal()
    with Screen(stream) as screen:
        screen.status("one", force=True)
        screen.status("two", force=True)
        screen.status("too soon")
        screen.line("done")
        screen.status("three", force=True)
    wipe = "\r\x1b[2K"
    assert stream.getvalue() == f"one{wipe}two{wipe}done\nthree{wipe}"


def test_a_line_above_the_status_leaves_it_there() -> None:
    """Many of them do not delay the next status, in a terminal or elsewhere."""
    stream, plain = Terminal(), io.StringIO()
    for each in (stream, plain):
        with Screen(each) as screen:
            screen.above("zero")
            screen.status("one", force=True)
            written = screen._written_at
            screen.above("a")
            screen.above("b")
            assert screen._written_at == written
            screen.status("two", force=True)
    wipe = "\r\x1b[2K"
    assert stream.getvalue() == f"zero\none{wipe}a\none{wipe}b\none{wipe}two{wipe}"
    assert plain.getvalue() == "zero\none\na\nb\ntwo\n"


def test_a_terminal_shows_all_of_a_long_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job waits for is at its end, and a terminal has 80 columns."""
    monkeypatch.setenv("COLUMNS", "23")
    monkeypatch.setenv("LINES", "4")
    stream = Terminal()
    with Screen(stream) as screen:
        screen.status("950 done, 0/s, lag 50; waiting for the next retry", force=True)
        screen.status("rows beyond those of the terminal " * 9, force=True)
    wipe = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * 2
    first = "950 done, 0/s, lag\n50; waiting for the\nnext retry"
    assert stream.getvalue().startswith(first + wipe)
    assert stream.getvalue().count("\n") == 4


def test_elsewhere_lines_are_plain_and_few() -> None:
    """No control characters, and not a line for each status."""
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.status("one", force=True)
        for _ in range(100):
            screen.status("too soon")
        screen.line("done")
    assert stream.getvalue() == "one\ndone\n"


def test_the_bar_and_the_rate() -> None:
    """The bar fills up; the rate is that of the last seconds."""
    assert bar(1, 2) == "[############------------]  50%"
    assert bar(0, 0).endswith("100%")
    rate = Rate()
    assert rate.at(0) == 0
    assert rate.at(1_000) > 1_000


def test_a_table_in_a_catalog_needs_a_session() -> None:
    """Without one, and without a catalog to start one for, both ways to it are named."""
    result = CliRunner().invoke(main, ["store", "check", "--commit-table", "shop.sales.commits"])
    assert result.exit_code == 2
    for part in ("'shop.sales.commits' is in a catalog", "--spark-conf KEY=VALUE",
                 "spark-submit", "'./shop.sales.commits'"):  # fmt: skip
        assert part in result.output
    wrong = CliRunner().invoke(main, ["offsets", "reset", "g", "--commit-table", "a.b"])
    assert "give --topic, or --all-topics" in wrong.output


def test_a_reset_does_one_thing_to_the_state() -> None:
    """Two of the options are an error, not the last one."""
    words = ["offsets", "reset", "g", "--topic", "t", "--to-latest", "--commit-table", "a"]
    both = CliRunner().invoke(main, [*words, "--restore-state", "--keep-state"])
    assert both.exit_code == 2
    assert "give one of --restore-state, --clear-state and --keep-state" in both.output


def test_a_session_for_a_catalog_ends_with_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the settings that were given; a path, or a session that is there, needs none."""
    from coopconsume.cli import catalog

    events: list[object] = []
    session = object()
    monkeypatch.setattr(sessions, "local_session", lambda conf: events.append(conf) or session)
    monkeypatch.setattr(sessions, "stop_session", events.append)
    conf = {"spark.sql.catalog.shop": "x.Catalog"}

    def fail() -> None:
        with catalog.session_for({"commitTABLE": "a.b"}, conf) as own:
            assert own is session
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert events == [conf, session]
    for path in ("./a.b", "/data/commits", "s3://bucket/commits", str(folder)):
        with catalog.session_for({"commitTable": path}, conf) as none:
            assert none is None
    with catalog.session_for({}, conf) as none:
        assert none is None
    there = object()
    monkeypatch.setattr(catalog, "given_session", lambda: there)
    with catalog.session_for({"commitTable": "a.b"}, conf) as given:
        assert given is there
    assert events == [conf, session]


def test_a_repair_into_a_catalog_gets_a_session(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the damaged table is on a path."""
    session, asked = object(), []

    def check(target: str, *, spark: object) -> None:
        asked.append((target, spark))
        raise CommitTableNotFound(target)

    monkeypatch.setattr(sessions, "local_session", lambda conf: session)
    monkeypatch.setattr(sessions, "stop_session", asked.append)
    monkeypatch.setattr(import_module("coopconsume.admin.client"), "check_table", check)
    path = str(folder / "commits")
    CliRunner().invoke(
        main,
        ["store", "repair", "--from", "snapshot", "--into", "shop.sales.commits",
         "--commit-table", path, "--spark-conf", "spark.sql.catalog.shop=x.Catalog"],
    )  # fmt: skip
    assert asked == [(path, session), session]


class _Opened(Exception):
    """A commit store was about to be opened, with this session."""


OPENING = {
    "offsets": lambda options, spark: OffsetAdmin(options, "g", spark=spark),
    "groups": lambda options, spark: list_groups(options, spark=spark),
    "group": lambda options, spark: describe_group(options, "g", spark=spark),
    "topics": lambda options, spark: describe_topics(options, spark=spark),
    "shareable": lambda options, spark: set_shareable(options, [], spark=spark),
    "letters": lambda options, spark: DeadLetters(
        options | {"deadLetter": "/dead", "kafka.group.id": "g"}, spark=spark
    ),
    "partitions": lambda options, spark: partitions_frame(spark, options),
    "gaps": lambda options, spark: gaps_frame(spark, options, "g"),
    "page": lambda options, spark: GroupReader(options, "g", spark=spark),
}


@pytest.mark.parametrize("call", OPENING)
def test_what_operators_call_takes_a_session(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """For a commit table in a catalog it is what opens the store."""

    def opened(*_: object, spark: object, **__: object) -> None:
        raise _Opened(spark)

    for module in ("connection", "topics"):
        monkeypatch.setattr(import_module(f"coopconsume.kafka.{module}"), "Cluster", MagicMock())
    monkeypatch.setattr(CommitStore, "open", opened)
    session = MagicMock()
    options = {"kafka.bootstrap.servers": "broker:9092", "commitTable": "shop.sales.commits"}
    with pytest.raises(_Opened) as caught:
        OPENING[call](options, session)
    assert caught.value.args == (session,)


def test_the_data_source_names_the_way_to_a_table_in_a_catalog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no session; what has one is named, and Spark's worker shows the sentence alone."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    reader = CommitsSource({"commitTable": "shop.sales.commits", "group": "g"}).reader(StructType())
    with pytest.raises(InvalidOption, match=r"create_views\(spark, options\)"):
        reader.partitions()
    assert os.environ["SPARK_HIDE_TRACEBACK"]


def test_a_source_that_spark_has_found_needs_no_registration() -> None:
    """Some versions of Spark refuse its name then; other errors are raised."""
    session = MagicMock()
    register_source(session)
    session.dataSource.register.assert_called_once_with(CommitsSource)
    error = session.dataSource.register.side_effect = AnalysisException("refused")
    error.getCondition = lambda: "DATA_SOURCE_ALREADY_EXISTS"  # type: ignore[method-assign]
    register_source(session)
    error.getCondition = lambda: "UNSUPPORTED"  # type: ignore[method-assign]
    with pytest.raises(AnalysisException):
        register_source(session)


@pytest.mark.parametrize("more", [("--processing-time", "soon"), ("--concurrency", "0")])
def test_a_wrong_value_is_refused_before_the_broker_is_asked(tmp_path, more, monkeypatch):
    """The error names the option."""
    monkeypatch.setattr("coopconsume.cli.run._check_before_starting", None)
    result = run(tmp_path, HANDLER, *more)
    assert result.exit_code == 2
    assert more[0].strip("-") in result.output


def test_a_result_is_made_in_one_form_only() -> None:
    """The other form may be large: a million gaps as JSON, while the text shows twenty."""
    made: list[str] = []

    def lines() -> Iterator[str]:
        made.append("text")
        yield "text"

    @click.command
    @place.shown
    def command() -> place.Shown:
        return place.Shown(lambda: made.append("document"), lines())

    assert (CliRunner().invoke(command).output, made) == ("text\n", ["text"])
    made.clear()
    assert (CliRunner().invoke(command, "--json").output, made) == ("null\n", ["document"])


def test_the_help_has_jobs_first_and_all_commands_in_sections() -> None:
    """Each command is in one section, with its own help."""
    shown = CliRunner().invoke(main, ["--help"], terminal_width=100).stdout
    heads = re.findall(r"^(\w[^\n]*):$", shown, re.MULTILINE)
    assert heads == [
        "Options", "Jobs", "Groups of jobs", "Fenced logs and work queues, without Spark",
    ]  # fmt: skip
    sections = shown.partition("Jobs:\n")[2].partition("  Exit codes:")[0]
    listed = re.findall(r"^  ([\w-]+) +[A-Z]", sections, re.MULTILINE)
    assert sorted(listed) == sorted(main.commands)
    assert listed[0] == "run"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252:strict", "utf-8"])
def test_a_terminal_without_utf8_shows_the_help(encoding: str) -> None:
    """What it cannot show is replaced, and there is no traceback."""
    words = [sys.executable, "-m", "coopconsume", "offsets", "reset", "--help"]
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    found = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")
    assert b"Usage:" in found.stdout
    if encoding == "utf-8":
        assert "…".encode() in found.stdout
