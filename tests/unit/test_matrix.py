"""What the page of versions says was tried."""

from __future__ import annotations

import itertools

from coopconsume.spark_versions import SUPPORTED
from tests.matrix import EXCLUDED, JAVAS, KAFKAS, PYTHONS, combinations, written

_KAFKAS = tuple(version.rpartition(".")[0] for version in KAFKAS)
_VERSIONS = tuple(minor.version for minor in SUPPORTED), _KAFKAS, PYTHONS, JAVAS


def test_each_two_versions_were_tried_together_and_every_row_passed():
    """Of Spark, Kafka, Python and Java, as far as they are supported together."""
    rows = written()
    assert [row.line for row in rows if not row.is_ok] == []
    tried = {pair for row in rows for pair in itertools.combinations(enumerate(row.key), 2)}
    each = [[(kind, one) for one in some] for kind, some in enumerate(_VERSIONS)]
    wanted = {pair for some in itertools.combinations(each, 2) for pair in itertools.product(*some)}
    excluded = {((0, EXCLUDED[0]), (2, EXCLUDED[1]))}
    assert wanted - tried == excluded


def test_every_combination_passed_the_smoke_test():
    """All versions of Spark, Kafka, Python and Java together, as far as they are supported."""
    tried = combinations()
    wanted = [at for at in itertools.product(*_VERSIONS) if (at[0], at[2]) != EXCLUDED]
    assert {at: tried.get(at) for at in wanted if tried.get(at) != "ok"} == {}
