"""Options of commands: from the command line, from a file, and from the file of a variable."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from coopconsume.cli import main
from coopconsume.cli.command_config import GivenOptions, full_name, used_by_logs
from coopconsume.cli.place import SHORT_FORMS
from coopconsume.fenced.config import REFUSED_SETTINGS as REFUSED_BY_LOGS
from coopconsume.kafka.settings import KNOWN_KAFKA_SETTINGS
from coopconsume.option_names import COMMAND_CONFIG, WITHOUT_EFFECT
from coopconsume.options import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

LOGIN = 'org.example.PlainLoginModule required username="a" password="hunter2";'
SHARED = f"""\
# Kafka's tools use this file, too.
bootstrap.servers = file:9092
security.protocol: SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config={LOGIN}
group.id=of-file
isolation.level=read_committed
enable.auto.commit=false
committable=/file/commits
deadLetter=s3://key:hunter2@bucket/dead
kafka.client.id=me
kafka.org.example.plugin.token=hunter2
"""
#: They start a broker of their own and use no other one.
WITHOUT_A_CLUSTER = {("broker",), ("demo",)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of options that several commands share."""
    found = tmp_path / "client.properties"
    found.write_text(SHARED)
    return found


def printed(*words: object, env: dict[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Values of options and their origins, as a command prints them."""
    result = CliRunner(env=env).invoke(main, [*map(str, words), "--print-options"])
    assert (result.exit_code, result.stderr) == (0, "")
    titles, *rows = (re.split(" {2,}", line) for line in result.stdout.splitlines())
    assert titles == ["OPTION", "VALUE", "FROM"]
    return {name: (value, origin) for name, value, origin in rows}


def call(*words: object) -> Result:
    """The result of a command."""
    return CliRunner().invoke(main, [*map(str, words)])


def leaves(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands that do something, each with the words that call it."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name, one in (below or {}).items():
        yield from leaves(one, (*path, name))


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*leaf, id="-".join(leaf[0])) for leaf in leaves()]
)
def test_every_command_that_uses_a_cluster_or_a_table_takes_a_file(
    path: tuple[str, ...], command: click.Command
) -> None:
    """A new command gets it with its options, or is named above."""
    options = {flag for one in command.params if isinstance(one, click.Option) for flag in one.opts}
    assert ({"--command-config", "--print-options"} <= options) == (path not in WITHOUT_A_CLUSTER)
    for one in command.params:
        assert one.name != "command_config" or one.envvar == COMMAND_CONFIG


def test_a_job_takes_the_short_forms_of_operators_commands() -> None:
    """What names a cluster, a group and a table for one command does so for all."""
    words = ("--bootstrap-servers", "line:1", "--group", "shop", "--commit-table", "/line")
    found = printed("run", "no.module:here", *words)
    assert found["kafka.bootstrap.servers"] == ("line:1", "--bootstrap-servers")
    assert found["kafka.group.id"] == ("shop", "--group")
    assert found["commitTable"] == ("/line", "--commit-table")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("run", "shop:f", "--slots", "2"), "write it as -o slots=…"),
        (("run", "shop:f", "--starting-offsets=earliest"), "write it as -o startingOffsets=…"),
        (("groups", "describe", "--lease-grace", "3", "shop"), "write it as -o leaseGrace=…"),
        (("run", "shop:f", "--bootstrap-server", "h"), "Did you mean '--bootstrap-servers'?"),
    ],
)
def test_an_option_of_the_consumer_as_a_flag_is_named_as_it_is_written(
    words: tuple[str, ...], hint: str
) -> None:
    """A flag that is misspelt has the nearest flag."""
    found = call(*words)
    assert found.exit_code == 2
    assert hint in found.stderr


def test_a_name_of_another_client_in_a_file_names_what_stands_for_it(tmp_path: Path) -> None:
    """So does an option of ours with ``kafka.``; a setting of security never names another kind."""
    file = tmp_path / "client.properties"
    file.write_text("sasl.password=hush\nkafka.subscribe=t\nsasl.key.password=x\n")
    found = call("groups", "list", "--command-config", file).stderr
    assert "line 1: option sasl.password = …: a setting of another client of Kafka; give " in found
    assert "kafka.sasl.jaas.config" in found
    assert "line 2: unknown option 'kafka.subscribe': did you mean 'subscribe'?" in found
    assert "ssl.key" not in found.replace("sasl.key", "")
    assert "hush" not in found


def test_the_command_line_counts_before_the_file(file: Path) -> None:
    """Whatever the case of a name; each option has its origin."""
    found = printed(
        "groups", "list", "--command-config", file, "-o", "COMMITTABLE=/line",
        "-o", "kafka.client.id=you", "--bootstrap-servers", "line:1",
    )  # fmt: skip
    assert found["commitTable"] == ("/line", "-o")
    assert found["kafka.client.id"] == ("you", "-o")
    assert found["kafka.bootstrap.servers"] == ("line:1", "--bootstrap-servers")
    assert found["kafka.group.id"] == ("of-file", f"{file}:6")
    assert found["kafka.security.protocol"] == ("SASL_PLAINTEXT", f"{file}:3")
    assert "batchTime" not in found


def test_a_job_shows_its_defaults_too(file: Path) -> None:
    """Those of options that are not given; a short form is its option."""
    words = ("run", "no.module:here", "--dead-letter", "/dead", "-o", "batchtime=3")
    found = printed(*words, "--command-config", file)
    assert found["deadLetter"] == ("/dead", "--dead-letter")
    assert found["batchTime"] == ("3", "-o")
    assert found["handlerTimeout"] == ("60", "default")
    assert found["failOnDataLoss"] == ("true", "default")
    assert "slots" not in found  # It has no default.


def test_the_variable_names_a_file_and_the_option_another_one(file: Path) -> None:
    """The files are not merged; an empty variable names none."""
    of_variable = {COMMAND_CONFIG: str(file)}
    assert printed("lag", "shop", env=of_variable)["commitTable"] == ("/file/commits", f"{file}:9")
    other = file.with_name("other.properties")
    other.write_text("client.id=other\n")
    found = printed("groups", "list", "--command-config", other, env=of_variable)
    assert found == {"kafka.client.id": ("other", f"{other}:1")}
    assert printed("groups", "list", env={COMMAND_CONFIG: ""}) == {}


@pytest.mark.parametrize("as_json", [False, True])
def test_secrets_are_starred(file: Path, as_json: bool) -> None:
    """Settings that are secret or not known, and passwords in URIs."""
    words = ("groups", "list", "--command-config", file, "--print-options")
    shown = call(*words, *["--json"] * as_json).stdout
    assert not as_json or json.loads(shown)[0] == {
        "option": "kafka.bootstrap.servers", "value": "file:9092", "from": f"{file}:2",
    }  # fmt: skip
    assert "hunter2" not in shown
    assert shown.count("***") == 3
    assert "s3://key:***@bucket/dead" in shown


def test_the_sample_of_the_documentation_is_what_a_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file, its command and its output."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
    blocks = re.findall(r"```(properties|sh|text)\n(.*?)```", page.read_text(), re.DOTALL)
    (_, file), (_, command), (_, output) = blocks[:3]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.properties").write_text(file)
    program, *words = shlex.split(command)
    assert (program, call(*words).stdout) == ("coopconsume", output)


def test_printing_contacts_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a broker nor a table, and it needs no Java."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr("socket.socket", None)
    for words in (["run", "no.module:here"], ["store", "check"], ["log", "head", "t"]):
        assert printed(*words, "--command-config", file)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["log", "head", "t"], {"kafka.bootstrap.servers", "kafka.org.example.plugin.token"}),
        (["owners", "list"], {"kafka.bootstrap.servers", "kafka.sasl.jaas.config"}),
        (["queue", "list", "t"], {"kafka.bootstrap.servers", "deadLetter", "kafka.group.id"}),
        (["state", "dump", "g", "--state", "s"], {"commitTable"}),
        (["store", "check"], {"commitTable", "kafka.bootstrap.servers", "deadLetter"}),
    ],
)
def test_a_command_uses_what_it_knows_of_a_shared_file(
    file: Path, words: list[str], names: set[str]
) -> None:
    """The other options of the file are left to other commands."""
    found = printed(*words, "--command-config", file)
    assert names <= set(found)
    is_of_log = words[0] in ("log", "owners")
    assert ("commitTable" in found) is not is_of_log
    if is_of_log:
        assert not {"kafka.isolation.level", "kafka.enable.auto.commit", "deadLetter"} & set(found)


def test_what_logs_refuse_is_left_out_of_a_shared_file() -> None:
    """A job may give it, and a writer sets it itself."""
    for setting in {*REFUSED_BY_LOGS, *WITHOUT_EFFECT}:
        assert not used_by_logs(f"kafka.{setting}")
    assert used_by_logs("kafka.sasl.jaas.config")


@pytest.mark.parametrize(
    ("words", "origin"),
    [(["lag", "shop"], "GROUP"), (["offsets", "import", "{file}", "--group", "shop"], "--group")],
)
def test_the_group_of_an_operators_command_counts(
    file: Path, words: list[str], origin: str
) -> None:
    """Before that of the file."""
    words = [word.format(file=file) for word in words]
    assert printed(*words, "--command-config", file)["kafka.group.id"] == ("shop", origin)


def test_all_wrong_lines_are_named_with_file_and_line(file: Path) -> None:
    """Unknown names with the closest one, options of Spark, and values; exit code 2."""
    file.write_text(
        "bootstrap.server=x\n\nkafka.group.idd=g\ncommit_table=/x\nbatchTime=soon\n"
        "key.deserializer=x\ncheckpointLocation=/x\nodd=hunter2\n"
    )
    result = call("groups", "list", "--command-config", file)
    assert (result.exit_code, result.stdout) == (2, "")
    head, *problems = re.split("(?:: |; )line ", result.stderr.strip())
    assert head == f"coopconsume: {file}"
    assert [problem[0] for problem in problems] == ["1", "3", "4", "5", "6", "7", "8"]
    wanted = ("'bootstrap.servers'", "'kafka.group.id'", "'commitTable'", "give seconds",
              "keys are bytes", "commitTable has what is done", "coopconsume run")  # fmt: skip
    for problem, said in zip(problems, wanted, strict=True):
        assert said in problem
    assert "hunter2" not in result.stderr


def test_a_wrong_name_on_the_command_line_is_not_printed_as_if_it_counted() -> None:
    """There, settings of clients begin with kafka."""
    for name in ("bootstrap.servers=x", "comitTable=x", "kafka.group.idd=x"):
        assert call("groups", "list", "-o", name, "--print-options").exit_code == 2


def test_a_file_that_is_not_there_is_wrong_usage(file: Path) -> None:
    """Also that of the variable, which is named: a command must not do without it."""
    missing = str(file) + "x"
    result = CliRunner(env={COMMAND_CONFIG: missing}).invoke(main, ["groups", "list"])
    assert result.exit_code == 2
    assert COMMAND_CONFIG in result.stderr
    assert missing in result.stderr


def test_a_registry_in_a_table_needs_no_cluster_of_the_file(file: Path, tmp_path: Path) -> None:
    """What is on the command line contradicts it, the file does not."""
    table = ("owners", "list", "--table", tmp_path / "registry")
    assert call(*table, "--command-config", file).exit_code == 1
    both = call(*table, "--bootstrap-servers", "a:1")
    assert (both.exit_code, "one of both" in both.stderr) == (2, True)
    assert call("owners", "list").exit_code == 2


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["queue", "list", "t", "--bootstrap-servers", "a:1"], "kafka.group.id"),
        (["state", "dump", "g", "--state", "s"], "commitTable"),
    ],
)
def test_what_neither_the_command_line_nor_the_file_has_is_missing(
    words: list[str], name: str
) -> None:
    """It may be in either, so click cannot require it."""
    result = call(*words)
    assert result.exit_code == 2
    assert f"option '{name}' is missing" in result.stderr


def test_each_name_in_a_file_means_one_option() -> None:
    """Settings of clients with and without their prefix, own options in any case."""
    for setting in KNOWN_KAFKA_SETTINGS:
        assert full_name(setting) == full_name(f"kafka.{setting}") == f"kafka.{setting}"
    for option in TABLE:
        assert full_name(option.name.upper()) == full_name(option.name) == option.name
    assert full_name("sasl_plain_password") == "kafka.sasl.plain.password"
    assert full_name("of.nobody") == "of.nobody"


def test_the_last_one_of_a_file_counts(file: Path) -> None:
    """As in Java; two spellings are one option."""
    file.write_text("group.id=a\nkafka.group.id=b\nSLOTS=1\nslots=2\n")
    found = printed("groups", "list", "--command-config", file)
    assert found == {"kafka.group.id": ("b", f"{file}:2"), "slots": ("2", f"{file}:4")}


def test_the_last_one_of_the_command_line_counts() -> None:
    """For the command as for what is printed."""
    options = GivenOptions()
    for name, value in (("kafka.sasl_plain_password", "a"), ("kafka.sasl.plain.password", "b")):
        options.give(name, value, "-o")
    assert options == {"kafka.sasl.plain.password": "b"}
    assert options.table(defaults=False) == [("kafka.sasl.plain.password", "***", "-o")]


def test_an_option_has_the_same_words_on_the_command_line() -> None:
    """--dead-letter is deadLetter: a parameter that has the words of an option is short for it."""
    names = {option.attribute: option.name for option in TABLE}
    found = set()
    for _, command in leaves():
        for parameter in command.params:
            if parameter.name in names:
                found.add(parameter.name)
                flag, option = SHORT_FORMS[parameter.name]
                assert flag == f"--{parameter.name.replace('_', '-')}" == parameter.opts[0]
                assert option == names[parameter.name]
    assert found == {"commit_table", "dead_letter"}


def test_a_short_form_and_its_option_exclude_each_other() -> None:
    """In every command, a job included."""
    result = call("run", "a:b", "--dead-letter", "x", "-o", "deadletter=y")
    assert result.exit_code == 2
    assert "--dead-letter and -o deadLetter: give one of both" in result.stderr
