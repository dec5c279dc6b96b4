"""All mutants, by what they break; `Mutant` says what one means."""

from __future__ import annotations

from tests.mutants.acquisitions import ACQUISITIONS
from tests.mutants.agreement import AGREEMENT, STATE_OF_A_GROUP
from tests.mutants.channel import CHANNEL, CHANNEL_DRIVER
from tests.mutants.checks import ASSIGNORS, CHECKER, CLOCKS, SHOWN
from tests.mutants.commits import ANSWERS, COMMITS, SNAPSHOTS
from tests.mutants.continuing import CONTINUING
from tests.mutants.cooperative import COOPERATIVE_JOBS
from tests.mutants.decisions import DECISIONS
from tests.mutants.decoding import DECODING
from tests.mutants.demo import DEMO
from tests.mutants.fail_stop import FAIL_STOP
from tests.mutants.fenced import FENCED, OWNERS
from tests.mutants.filters import FILTERS
from tests.mutants.group import DRAIN, GROUP, POLLING, TOPICS
from tests.mutants.host_locks import HOST_LOCKS
from tests.mutants.identity import IDENTITY
from tests.mutants.options import OPTIONS
from tests.mutants.order import LIMITS, ORDER
from tests.mutants.ordering_keys import ORDERING_KEYS
from tests.mutants.outcomes import DENIED, OUTPUTS, RETRIES
from tests.mutants.queue import QUEUE
from tests.mutants.realtime import REALTIME
from tests.mutants.state import STATE
from tests.mutants.table_places import TABLE_PLACES
from tests.mutants.tables import TABLES
from tests.mutants.ui import UI
from tests.mutants.values import VALUES
from tests.mutants.wide import WIDE
from tests.mutants.workers import WORKERS

#: The mutants by what they break.
GROUPS = [
    ORDER,
    WIDE,
    CONTINUING,
    COOPERATIVE_JOBS,
    DRAIN,
    CHANNEL_DRIVER,
    FAIL_STOP,
    HOST_LOCKS,
    DEMO,
    GROUP,
    COMMITS,
    TABLES,
    SNAPSHOTS,
    OUTPUTS,
    LIMITS,
    TOPICS,
    DENIED,
    POLLING,
    RETRIES,
    DECISIONS,
    ANSWERS,
    CLOCKS,
    FENCED,
    ASSIGNORS,
    OWNERS,
    CHECKER,
    CHANNEL,
    QUEUE,
    ACQUISITIONS,
    SHOWN,
    STATE,
    AGREEMENT,
    STATE_OF_A_GROUP,
    FILTERS,
    ORDERING_KEYS,
    REALTIME,
    IDENTITY,
    TABLE_PLACES,
    UI,
    VALUES,
    DECODING,
    WORKERS,
    OPTIONS,
]
MUTANTS = [mutant for group in GROUPS for mutant in group]
