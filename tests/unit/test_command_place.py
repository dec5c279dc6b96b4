"""Where commands find a cluster and a commit table."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from coopconsume.cli.place import at_a_place
from coopconsume.command_place import command_place, option_words
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLACE = {"kafka.bootstrap.servers": "a:9092,b:9092", "commitTable": "./commits"}


def test_a_place_has_what_a_connection_needs_and_no_secrets() -> None:
    """It is quoted for a shell."""
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required password="hush";'
    options = Options.parse({
        **PLACE, "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": login.replace("required", 'required username="u"'),
        "kafka.client.id": "c",
    }, group=False)  # fmt: skip
    found = command_place(options, "/my data/commits")
    assert shlex.split(found) == [
        "--bootstrap-servers", "a:9092,b:9092", "--commit-table", "/my data/commits",
        "-o", "kafka.sasl.mechanism=PLAIN", "-o", "kafka.security.protocol=SASL_PLAINTEXT",
    ]  # fmt: skip
    plain = Options.parse(PLACE, group=False)
    table = command_place(plain, "s3://user:hush@bucket/commits")
    assert shlex.split(table) == [
        "--bootstrap-servers", "a:9092,b:9092", "--commit-table", "s3://user:***@bucket/commits",
    ]  # fmt: skip
    certificates = plain.kafka | {"ssl.truststore.certificates": "-----BEGIN\nMII"}
    assert "BEGIN" not in option_words(certificates, "./commits"), "one line is one command"


@click.command()
@at_a_place
def _where(options: Mapping[str, str], **_: Any) -> None:
    """Print the place of the next command, as all that reads a group knows it."""
    parsed = Options.parse({**options, "kafka.group.id": "g"})
    click.echo(command_place(parsed, parsed.commit_table))


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ((), ()),
        (("--commit-table", "/b c"), ("--commit-table", "/b c")),
        (("-o", "kafka.client.id=c"), ()),
        (("-o", "kafka.security.protocol=SSL"), ("-o", "kafka.security.protocol=SSL")),
        (("-o", "kafka.ssl.key.password=hush"), ()),
        (
            ("--spark-conf", "spark.a=1 2", "--spark-conf", "spark.hadoop.secret.key=hush"),
            ("--spark-conf", "spark.a=1 2"),
        ),
    ],
)
def test_a_next_command_has_the_file_and_what_was_given_beside_it(
    tmp_path: Path, given: tuple[str, ...], printed: tuple[str, ...]
) -> None:
    """Not what the file has: a secret of it would be starred, and the command would fail."""
    file = tmp_path / "c.properties"
    file.write_text("bootstrap.servers=a:1\ncommitTable=s3://key:hush@bucket/c\n")
    words = ["--command-config", str(file)]
    found = CliRunner().invoke(_where, [*words, *given])
    assert found.exit_code == 0, found.output
    assert shlex.split(found.output) == [*words, *printed]


def test_a_next_command_names_no_file_that_can_be_read_once() -> None:
    """Such as a pipe from a program that knows the secrets."""
    end, start = os.pipe()
    try:
        os.write(start, b"bootstrap.servers=a:1\ncommitTable=./c\n")
        os.close(start)
        found = CliRunner().invoke(_where, ["--command-config", f"/dev/fd/{end}"])
    finally:
        os.close(end)
    assert found.output == "--bootstrap-servers a:1 --commit-table ./c\n", found.output


def test_without_a_file_a_next_command_has_all_that_is_given() -> None:
    """Settings of the session, too."""
    given = ["--bootstrap-servers", "a:1", "--commit-table", "./c"]
    session = ["--spark-conf", "spark.a=1"]
    for words in (given, [*given, *session]):
        found = CliRunner().invoke(_where, words)
        assert shlex.split(found.output) == words, found.output
