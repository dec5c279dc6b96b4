"""The programs and commands of all pages run as they are printed, from top to bottom."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove

from commits import CommitStore
from coopconsume.demo.processes import kill_tree
from coopconsume.query import CooperativeQuery
from tests.pages import PAGES, ROOT, Reader, blocks_of, page_before
from tests.spark.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from coopconsume.testing.local import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker]
_RUN = [page for page in PAGES if any(not block.is_marked for block in blocks_of(page))]


@pytest.fixture(scope="module")
def world(
    kafka: LocalKafka, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """The broker and the session that all pages share."""
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        before = set(admin.list_topics())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CooperativeQuery, "awaitTermination", _until_ctrl_c)
            cluster = str(admin.describe_cluster()["cluster_id"])
            yield World(kafka, admin, cluster, spark, tmp_path_factory.mktemp("pages"), patch)
            for module in ("shop", "billing"):
                sys.modules.pop(module, None)
        admin.delete_topics(sorted(set(admin.list_topics()) - before))


class World:
    """Runs pages, each at most once, on one broker and one session.

    Args:
        kafka: The broker.
        admin: A client of it.
        cluster: The id of its cluster.
        spark: The session, which ``local_session`` returns.
        root: The folder for the folders of the pages.
        patch: Undoes at the end what is set here.
    """

    def __init__(
        self,
        kafka: LocalKafka,
        admin: KafkaAdminClient,
        cluster: str,
        spark: SparkSession,
        root: Path,
        patch: pytest.MonkeyPatch,
    ) -> None:
        self._kafka, self._admin, self._root, self._patch = kafka, admin, root, patch
        self.cluster = cluster
        self._ran: dict[Path, Path] = {}
        self._modules = root / "modules"
        self._modules.mkdir()
        # `coopconsume run` adds the current folder to these, for workers that start later.
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        # Workers of the session look for the handlers of all pages in one place.
        patch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(self._modules))

    def after(self, page: Path) -> Path:
        """Returns the folder as a page leaves it; it starts with what the page before left."""
        if page not in self._ran:
            folder, reader = self.begin(page)
            reader.run(page)
            self._remove_static_members()
            self._ran[page] = folder
        return self._ran[page]

    def _remove_static_members(self) -> None:
        """Has the broker take static members for gone, as it does when their sessions are over.

        A reader of the next page comes later than this.
        """
        for group, found in self._admin.describe_groups(
            [one["group_id"] for one in self._admin.list_groups()]
        ).items():
            static = [one["group_instance_id"] for one in found["members"]]
            gone = [MemberToRemove(group_instance_id=one) for one in static if one]
            if gone:
                self._admin.remove_group_members(group, gone)

    def begin(self, page: Path) -> tuple[Path, Reader]:
        """Returns the folder in which a page starts, as the current one, and its reader."""
        folder = self._root / "-".join(page.relative_to(ROOT).with_suffix("").parts)
        before = page_before(page)
        if before is None:
            folder.mkdir()
        else:
            shutil.copytree(self.after(before), folder)
        self._patch.chdir(folder)
        return folder, Reader(self._kafka, folder, self._modules)


def _until_ctrl_c(query: CooperativeQuery, timeout: float | None = None) -> bool | None:
    """Waits for the end of a job; ends one without an end as by Ctrl-C, once all is done."""
    if not query._job._job_spec.available_now:
        query.processAllAvailable()
        if timeout is None:
            raise KeyboardInterrupt
        query.stop()
    return _await_termination(query, timeout)


_await_termination = CooperativeQuery.awaitTermination


def committed(world: World, group: str) -> int:
    """Returns the number of payments that the commit table of the current folder has."""
    state = CommitStore.open("./commits", cluster=world.cluster).state(group)
    commits = state.get(("payments", 0))
    if commits is None:
        return 0
    return commits.stable_offset + sum(last - first + 1 for first, last in commits.ranges)


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in _RUN])
def test_a_page_runs_as_it_is_printed(world: World, page: Path) -> None:
    """Its programs and commands, in order, in a fresh folder."""
    world.after(page)


def test_a_job_and_a_poll_of_the_tutorials_commit_what_they_say(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job all payments, the notebook those of the customers below customer-12."""
    tutorials = ROOT / "docs" / "tutorials"
    monkeypatch.chdir(world.after(tutorials / "first-job.md"))
    assert committed(world, "billing") == 1_000
    monkeypatch.chdir(world.after(tutorials / "notebook.md"))
    done = sum(f"customer-{number % 20}" < "customer-12" for number in range(1_000))
    assert committed(world, "notebook") == done


@pytest.mark.slow
def test_a_job_is_killed_and_looked_at_as_the_tutorial_does(world: World) -> None:
    """The commands show what the killed job had committed, and what it had not."""
    page = ROOT / "docs" / "tutorials" / "kill-it.md"
    folder, reader = world.begin(page)
    handler, start, look, again, count = blocks_of(page)
    reader.run_block(handler)
    ((_, *arguments),) = reader.commands(start)
    # In processes of their own: their workers write to the current folder.
    command = [sys.executable, "-m", "coopconsume", *arguments]
    with (folder / "said").open("w") as said:
        job = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        until(lambda: committed(world, "slow"))
    finally:
        kill_tree(job)
    before = committed(world, "slow")
    assert 0 < before < 1_000
    shown = reader.run_block(look)
    assert "group slow" in shown
    assert "payments-0" in shown
    assert list(reader.commands(again)) == [["coopconsume", *arguments]]
    subprocess.run(command, check=True, capture_output=True)
    assert reader.run_block(count).startswith("1,000 payments handled, ")
    assert committed(world, "slow") == 1_000
