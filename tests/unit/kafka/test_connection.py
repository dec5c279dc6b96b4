"""A cluster and its commit table, opened together."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from commits import CommitTableNotFound
from coopconsume.kafka import connection
from coopconsume.options import Options

if TYPE_CHECKING:
    from pathlib import Path


def test_a_missing_commit_table_leaves_no_connection_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster is reached first, and closed again."""
    cluster = MagicMock(cluster_id="a-cluster")
    monkeypatch.setattr(connection, "Cluster", lambda _: cluster)
    options = Options.parse(
        {
            "kafka.bootstrap.servers": "localhost:1", "kafka.group.id": "g",
            "commitTable": str(tmp_path / "none"),
        }
    )  # fmt: skip
    with pytest.raises(CommitTableNotFound):
        connection.Connection(options)
    cluster.close.assert_called_once_with()
