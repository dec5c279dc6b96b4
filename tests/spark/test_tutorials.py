"""The programs and commands of the tutorials, run as they are on a broker and a session."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from commits import CommitStore
from coopconsume.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coopconsume.testing.local import LocalKafka
    from tests.conftest import TopicFactory

PAGES = Path(__file__).parents[2] / "docs" / "tutorials"


class Tutorial:
    """The blocks of a page, with the names of this run's broker, topic and group.

    Args:
        page: The text of the page.
        names: What stands in the place of names in it.
        spark: The session that stands in the place of ``local_session``.
    """

    def __init__(self, page: str, names: dict[str, str], spark: SparkSession) -> None:
        for name, own in names.items():
            assert name in page
            page = page.replace(name, own)
        self._page = page.replace("local_session)", "_session)")
        # Functions of a program that is run by itself are those of `__main__`.
        self.names: dict[str, Any] = {"__name__": "__main__", "_session": spark}

    def blocks(self, language: str) -> list[str]:
        """Returns the blocks of a language, in order."""
        return re.findall(rf"```{language}\n(.*?)```", self._page, re.DOTALL)

    def run(self, program: str) -> None:
        """Runs a program, in the names of those before."""
        exec(compile(program, "<tutorial>", "exec"), self.names)


@pytest.fixture
def tutorial(
    kafka: LocalKafka, spark: SparkSession, topic: TopicFactory, tmp_path: Path, monkeypatch: Any
) -> Any:
    """Returns what opens a tutorial, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    payments = topic()

    def opened(page: str) -> Tutorial:
        names = {"localhost:9092": kafka.bootstrap_servers, "payments": payments}
        return Tutorial((PAGES / page).read_text("utf-8"), names, spark)

    opened.topic = payments  # type: ignore[attr-defined]
    return opened


@pytest.fixture
def cluster(kafka: LocalKafka) -> str:
    """The id of the broker's cluster; the commit table separates groups by it."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    found = str(admin.describe_cluster()["cluster_id"])
    admin.close()
    return found


def committed(cluster: str, topic: str) -> int:
    """Returns the number of offsets of a topic that the tutorials' commit table has."""
    state = CommitStore.open("./commits", cluster=cluster).state("billing")[topic, 0]
    return state.stable_offset + sum(last - first + 1 for first, last in state.ranges)


def test_the_first_job_processes_all_records_and_a_second_run_nothing(
    tutorial: Any, cluster: str
) -> None:
    """Producer, job, and the command that shows the group."""
    page = tutorial("first-job.md")
    write, process = page.blocks("python")
    page.run(write)
    page.run(process)
    assert committed(cluster, tutorial.topic) == 1000
    page.run(process)
    assert page.names["job"] is not None
    (lag,) = [block for block in page.blocks("sh") if block.startswith("coopconsume lag")]
    shown = CliRunner().invoke(main, shlex.split(lag)[1:], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert tutorial.topic in shown.output
    assert committed(cluster, tutorial.topic) == 1000


def test_the_notebook_tutorial_polls_and_commits_part_of_a_frame(
    tutorial: Any, cluster: str
) -> None:
    """The customers of the committed part are done, and the others are the gaps between them."""
    first, page = tutorial("first-job.md"), tutorial("notebook.md")
    first.run(first.blocks("python")[0])
    for program in page.blocks("python"):
        page.run(program)
    consumer = page.names["consumer"]
    try:
        assert page.names["frame"].count() == 1000
        done = sum(b"customer-%d" % (n % 20) < b"customer-12" for n in range(1000))
        assert committed(cluster, tutorial.topic) == done
        assert consumer.gaps().count() > 0
    finally:
        consumer.close()
