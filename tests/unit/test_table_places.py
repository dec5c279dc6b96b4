"""No table lies inside another one: VACUUM of the outer table would remove its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from commits import CommitStore
from coopconsume.errors import InvalidOption
from coopconsume.options import Options
from coopconsume.queue.settings import QueueReplica, QueueSettings
from coopconsume.record import RetryPolicy
from coopconsume.runtime.checks import check_settings, check_tables
from coopconsume.runtime.job_spec import HandlerSettings
from coopconsume.table_places import TablePlace, refuse_nested

WORDS = {"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g"}


def handle(record: Any) -> None:
    """Do nothing."""


def settings(**given: Any) -> HandlerSettings:
    """Settings of a job, by default without outputs and dead letters."""
    default: dict[str, Any] = {
        "concurrency": 1, "ordering": "key", "retry": None, "dead_letter": None,
        "on_dead": "continue", "output": None, "output_schema": None, "output_mode": "append",
    }  # fmt: skip
    if "output" in given:
        default["output_schema"] = "value string"
    return HandlerSettings(**{**default, **given})


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("/data/commits", "/data/commits/out"),
        ("/data/commits/", "/data/commits/a/b"),
        ("file:///data/a%20b", "/data/a b/out"),
        ("file:/data/commits", "file:///data/commits/out"),
        ("/data/x/../commits", "/data/./commits//out"),
        ("commits", f"{Path.cwd()}/commits/out"),
        ("s3://b/commits", "s3a://b/commits/out"),
        ("s3n://b//commits/", "s3://b/x/../commits/out"),
        ("abfs://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t/out"),
        ("az://c/t", "azure://c/t/out"),
        ("abfs://c/t", "adl://c/t/out"),
        ("gs://b", "gs://b/out"),
        ("/data/commits", "/data/commits/"),
    ],
)
def test_a_table_inside_another_one_is_refused_both_ways(outer: str, inner: str) -> None:
    """However the two are spelled, and also if they are the same."""
    for one, other in ((outer, inner), (inner, outer)):
        with pytest.raises(InvalidOption, match="a path outside the others"):
            refuse_nested([TablePlace("commitTable", one), TablePlace("output", other)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/data/commits", "/data/commits2"),
        ("/data/commits", "/data/out/commits"),
        ("s3://b/commits", "s3://c/commits/out"),
        ("s3://b/commits", "gs://b/commits/out"),
        ("s3://data/commits", "/data/commits/out"),
    ],
)
def test_tables_beside_each_other_are_taken(one: str, other: str) -> None:
    """A common beginning of the name is no common folder."""
    refuse_nested([TablePlace("commitTable", one), TablePlace("output", other)])


def test_symbolic_links_and_tables_of_others_are_seen(tmp_path: Path) -> None:
    """On a local disk; the error names the option, the table around it and what to do."""
    commits = tmp_path / "commits"
    (tmp_path / "link").symlink_to(commits)
    with pytest.raises(InvalidOption, match="inside commitTable") as refused:
        refuse_nested([
            TablePlace("commitTable", str(commits)),
            TablePlace("output", str(tmp_path / "link" / "out")),
        ])  # fmt: skip
    assert refused.value.name == "output"
    CommitStore.open(commits)
    with pytest.raises(InvalidOption, match=f"inside the Delta table '{commits}'"):
        refuse_nested([TablePlace("replicas", str(tmp_path / "link" / "a" / "b"))])
    refuse_nested([TablePlace("commitTable", str(commits))])


def test_the_same_bucket_of_two_stores_is_two_places() -> None:
    """As for the replicas of a queue; on a disk, options make no difference."""
    for scheme, is_refused in (("s3://b", False), ("", True)):
        tables = [
            TablePlace("replicas", f"{scheme}/q{more}", {"AWS_ENDPOINT_URL": f"http://{n}"})
            for n, more in enumerate(("", "/inner"))
        ]
        if is_refused:
            with pytest.raises(InvalidOption):
                refuse_nested(tables)
        else:
            refuse_nested(tables)


def test_each_table_of_a_job_and_a_queue_is_checked(tmp_path: Path) -> None:
    """Outputs, dead letters and decisions on them, purgatory, state, and replicas of a queue."""
    commits = str(tmp_path / "commits")
    inside = f"{commits}/inside"
    given = Options.parse({**WORDS, "commitTable": commits})

    def refused(name: str) -> Any:
        return pytest.raises(InvalidOption, match=f"option {name} = .*(inside|too)")

    with refused("output"):
        check_settings(given, handle, settings(output=inside))
    with refused("deadLetter"):
        check_settings(given, handle, settings(dead_letter=inside))
    with refused("deadLetter"):
        check_tables(Options.parse({**WORDS, "commitTable": commits, "deadLetter": inside}))
    with refused("state"):
        check_tables(given, settings(), inside)
    with refused("commitTable"):
        check_tables(given, settings(dead_letter=str(tmp_path / "dead")),
                     commit_table=f"file:{tmp_path}/dead_decisions/commits")  # fmt: skip
    with refused("state"):
        check_tables(given, settings(), str(tmp_path), commit_table=f"{tmp_path}/changelog")
    with_purgatory = Options.parse({**WORDS, "commitTable": commits, "purgatory": inside})
    with refused("purgatory"):
        check_settings(
            with_purgatory, handle, settings(output="kafka:out", output_mode="transactional")
        )
    with refused("output"):
        out = f"{tmp_path}/dead/out"
        check_settings(given, handle, settings(output=out, dead_letter=f"{tmp_path}/dead"))
    for options, replicas in (
        ({"commitTable": commits}, [QueueReplica(table=inside)]),
        ({"deadLetter": inside}, [QueueReplica(table=commits)]),
        ({}, [QueueReplica(table=commits), QueueReplica(table=inside)]),
    ):
        with refused("(replicas|deadLetter)"):
            QueueSettings.parse({**WORDS, **options}, "jobs", replicas)
    # Tables in one folder, the state and the purgatory as their own parents included.
    check_tables(
        Options.parse({**WORDS, "commitTable": commits, "purgatory": str(tmp_path)}),
        settings(output=f"{tmp_path}/out", dead_letter=f"{tmp_path}/dead", retry=RetryPolicy()),
        str(tmp_path),
    )  # fmt: skip


def test_a_table_inside_another_one_does_lose_its_files(tmp_path: Path) -> None:
    """The reason for the rule: files of the inner table are unknown to the outer one."""
    rows = pa.table({"n": [1]})
    write_deltalake(tmp_path / "outer", rows)
    write_deltalake(tmp_path / "outer" / "inner", rows)
    assert DeltaTable(tmp_path / "outer" / "inner").to_pyarrow_table() == rows
    outer = DeltaTable(tmp_path / "outer")
    outer.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert not list((tmp_path / "outer" / "inner").glob("*.parquet"))
