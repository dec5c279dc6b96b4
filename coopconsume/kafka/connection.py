"""A Kafka cluster and the commit store of its groups, opened together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commits import CommitStore
from coopconsume.closing import Closing
from coopconsume.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from coopconsume.options import Options


class Connection(Closing):
    """A Kafka cluster and a commit table, without a membership in a group.

    Args:
        options: The options of a consumer.
        create: Whether to create a missing commit table.
        spark: The session, needed for a commit table in a catalog.
        check: Raises an error if the cluster is not the right one, before a table is created.
        limits: As for `commits.CommitStore.open`.

    Raises:
        commits.CommitTableNotFound: There is no commit table.
        BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """

    def __init__(
        self,
        options: Options,
        *,
        create: bool = False,
        spark: SparkSession | None = None,
        check: Callable[[Cluster], None] | None = None,
        **limits: Any,
    ) -> None:
        self.options = options
        self.cluster = Cluster(options)
        try:
            if check is not None:
                check(self.cluster)
            self.store = CommitStore.open(
                options.commit_table, spark=spark, cluster=self.cluster.cluster_id, create=create,
                **limits,
            )  # fmt: skip
        except BaseException:
            self.cluster.close()
            raise

    def close(self) -> None:
        """Closes the connection to the cluster; the store stays usable. May be repeated."""
        self.cluster.close()
