"""What the page of versions says was tried."""

from __future__ import annotations

import itertools

from coopconsume.spark_versions import SUPPORTED
from coopconsume.testing.local.jars import KAFKA_VERSION
from tests.matrix import EXCLUDED, JAVAS, KAFKAS, PYTHONS, written


def test_each_two_versions_were_tried_together_and_every_row_passed():
    """Of Spark, Kafka, Python and Java, as far as they are supported together."""
    assert KAFKA_VERSION.startswith(f"{KAFKAS[-1]}.")
    rows = written()
    assert [row.line for row in rows if not row.is_ok] == []
    tried = {pair for row in rows for pair in itertools.combinations(enumerate(row.key), 2)}
    versions = [tuple(minor.version for minor in SUPPORTED), KAFKAS, PYTHONS, JAVAS]
    each = [[(kind, one) for one in some] for kind, some in enumerate(versions)]
    wanted = {pair for some in itertools.combinations(each, 2) for pair in itertools.product(*some)}
    excluded = {((0, EXCLUDED[0]), (2, EXCLUDED[1]))}
    assert wanted - tried == excluded
