"""A Kafka topic in which readers of committed records see each record's rows once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from coopconsume.errors import MissingOption
from coopconsume.sinks.base import output_schema
from coopconsume.sinks.publishing import Publishing
from coopconsume.sinks.purgatory import Purgatory
from coopconsume.sinks.topic import check_columns, messages_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.options import Options
    from coopconsume.sinks.base import Outputs


class TransactionalTopic:
    """The rows that handlers return, as records of a topic: once for readers of ``read_committed``.

    Rows wait in a Delta table, the purgatory, until the stable offset passes their record (KIP-X,
    "Transactional Support"). Then the owner of the partition's first key hashes writes them, in the
    order of the offsets, in a transaction that also moves the group's offset in Kafka: so that is
    how far the topic has got. Columns are those of `OutputTopic`.

    Args:
        topic: Its name; in the cluster that is consumed.
        schema: Of the rows, as DDL, a Spark or an Arrow schema.
        options: Of the consumer.

    Raises:
        InvalidOption: A column is not one of these, or there is no value.
        MissingOption: ``purgatory``, the folder of the tables in which rows wait.
        TableUnusable: There is something else in its place.
    """

    hears_all: ClassVar[bool] = False

    def __init__(self, topic: str, schema: str | StructType | pa.Schema, options: Options) -> None:
        self.topic = topic
        self.schema = output_schema(schema)
        check_columns(self.schema)
        if options.purgatory is None:
            raise MissingOption("purgatory")
        self._purgatory = Purgatory(options.purgatory, (options.group_id, topic))
        self._publishing: Publishing | None = None

    def write(self, outputs: Outputs) -> None:
        """Stores rows until their records are below the stable offset.

        Raises:
            OutputNotWritten: Delta did not take them.
        """
        self._purgatory.write(outputs, self.schema)

    def begin(self, assignment: EpochAssignment) -> Publishing:
        """Publishes under an epoch; publishing under an earlier one has ended."""
        self.close()
        self._purgatory.gain()
        self._publishing = Publishing(
            assignment,
            self.topic,
            self._purgatory,
            lambda chunk: messages_of(self.topic, chunk.rows),
        )
        return self._publishing

    def extend(self) -> None:
        """The epoch gains key ranges: their stored rows are published, too."""
        self._purgatory.gain()

    def close(self) -> None:
        """Closes the connections; harmless when repeated."""
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            publishing.close()
