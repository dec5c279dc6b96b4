"""Mutants of the identity of logs: topic ids and leader epochs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SERVED = "tests/broker/test_fetch_server.py::"
_RECREATED = _SERVED + "test_a_topic_that_is_created_again_is_another_log"
_CUT = _SERVED + "test_a_log_that_was_cut_is_another_log_above_the_cut"
_LONGER = (
    "tests/model/test_job_model.py::"
    "test_no_record_is_read_of_a_topic_that_is_created_again_with_a_longer_log"
)

IDENTITY = [
    Mutant(
        "fetch-server-of-any-topic-id",
        "A fetch server serves the topics whose ids its run knows.",
        "coopconsume/worker/realtime/fetch_server.py",
        "[[one.topic_id, one.leader_epoch] for one in self.logs]",
        '[["", one.leader_epoch] for one in self.logs]',
        (f"{_RECREATED}[by-a-server]",),
    ),
    Mutant(
        "fetch-server-of-any-leader-epoch",
        "A fetch server that has read a log before it was cut serves no run after that.",
        "coopconsume/worker/realtime/fetch_server.py",
        "[[one.topic_id, one.leader_epoch] for one in self.logs]",
        "[[one.topic_id, None] for one in self.logs]",
        (f"{_CUT}[by-a-server]",),
    ),
    Mutant(
        "slots-read-on-in-another-topic",
        "What a consumer has read counts only if the topic still has its id after that.",
        "coopconsume/worker/realtime/source.py",
        "is_confirmed = self._topics.confirm(topics)",
        "is_confirmed = True",
        (f"{_RECREATED}[without-a-server]",),
    ),
    Mutant(
        "ends-of-a-log-of-any-topic",
        "Where logs end counts only if their topics still have their ids after that.",
        "coopconsume/runtime/epoch_state.py",
        "            self._check_topics()\n            found = {tp",
        "            found = {tp",
        (_LONGER,),
    ),
    Mutant(
        "unknown-topic-ids-differ",
        "A topic id that is not known is not another one.",
        "coopconsume/kafka/identity.py",
        "return bool(noted and found and noted != found)",
        "return noted != found",
        (
            "tests/unit/kafka/test_identity.py::test_a_topic_is_another_one_only_if_both_ids_are_known",
        ),
    ),
]
