"""Where members begin, under any order of first epochs, late members, kills and moved offsets.

Members decide by `beginning` on what they have read, and write later what they have decided: the
real fold of the commit log and a model of Kafka's offsets are between them. Plain consumers and
tools write offsets while the group has no member, as Kafka allows it; partitions are added.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from assignors import MAX_KEY_HASH
from commits import Epoch, OffsetRanges
from commits.rows import Part
from coopconsume.group.beginning import Beginning, LogFacts, beginning
from coopconsume.kafka.primary import Primary
from tests.examples import examples
from tests.model.group_world import Log

TOPIC = "t"
PICK = st.integers(0, 9)


@dataclass
class Member:
    """A member of the epoch: what it has read and decided, and whether it has begun."""

    id: str
    epoch: Epoch
    at: int
    of: int
    decided: Beginning | None = None
    saw_ours: set[tuple[str, int]] = field(default_factory=set)
    has_begun: bool = False


class OffsetsMachine(RuleBasedStateMachine):
    """One group that starts at the latest offsets, and members that all share all partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.ends: list[int] = []
        self.primary: dict[tuple[str, int], Primary] = {}
        self.members: list[Member] = []
        self.acknowledged: dict[tuple[str, int], set[int]] = {}
        self.moved: dict[tuple[str, int], int] = {}
        # What the log knows to be in Kafka still: the same offset from outside is no news.
        self.known: dict[tuple[str, int], int] = {}
        self.initial = 0
        self.epochs = 0

    @initialize(
        ends=st.lists(st.integers(0, 9), min_size=1, max_size=3),
        plain=st.lists(st.none() | st.integers(0, 9), min_size=3, max_size=3),
    )
    def plain_consumers_stop(self, ends: list[int], plain: list[int | None]) -> None:
        """A group of plain consumers has left its offsets in some partitions."""
        self.ends = ends
        for partition, offset in enumerate(plain[: len(ends)]):
            if offset is not None:
                self.primary[TOPIC, partition] = Primary(offset, ours=False, topic_id="")

    @property
    def _last(self) -> tuple[str, int]:
        """The partition that the epoch in force does not share."""
        assert self.log.state.in_force is not None
        return max(share[:2] for share in self.log.state.in_force.all_shares())

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """All partitions that exist."""
        return [(TOPIC, partition) for partition in range(len(self.ends))]

    # -- the group

    @rule(count=st.integers(1, 3))
    def rebalance(self, count: int) -> None:
        """The next epoch: members share all partitions but the last one."""
        self.epochs += 1
        epoch = Epoch(self.log.state.highest + 1, f"n{self.epochs}")
        cuts = [MAX_KEY_HASH // count * i for i in range(count)] + [MAX_KEY_HASH + 1]
        ids = [f"m{self.epochs}-{i}" for i in range(count)]
        *shared, alone = self.partitions
        shares = {ids[i]: [[*tp, cuts[i], cuts[i + 1] - 1] for tp in shared] for i in range(count)}
        shares[ids[-1]].append([*alone, 0, MAX_KEY_HASH])
        answer = self.log.write(
            "epoch", epoch=epoch, previous=self.log.in_force(),
            detail={"members": shares, "topic_ids": {}, "takeover": False, "life_ms": 1},
        )  # fmt: skip
        assert answer.counted
        self.initial = self.initial or len(self.ends)
        self.members = [Member(ids[i], epoch, i, count) for i in range(count)]

    @rule(count=st.integers(1, 3), order=st.permutations(range(3)), late=st.integers(0, 2))
    def restart(self, count: int, order: list[int], late: int) -> None:
        """The next epoch: all members read, then begin in some order; some are late."""
        self.rebalance(count)
        for at in range(count):
            self.read(at)
        for at in [at for at in order if at < count][late:]:
            self.begin(at)
            for partition in range(len(self.ends)):
                self.commit(at, partition, 2)

    @rule(partition=PICK, offset=st.integers(0, 9), first=st.booleans())
    def stop_and_move(self, partition: int, offset: int, first: bool) -> None:
        """All members are gone, and a tool sets Kafka's offset."""
        self.members = []
        self.move(partition, offset, first)

    @rule(pick=PICK)
    def read(self, pick: int) -> None:
        """A member looks at the log, then at Kafka's offsets, and decides where it begins."""
        member = self._one(pick)
        if member is None or member.has_begun:
            return
        state = self.log.state
        facts = LogFacts(
            {at: one.commits.stable_offset for at, one in state.partitions.items()},
            {
                at: one.primary.offset for at, one in state.partitions.items()
                if one.primary is not None and not one.primary.replaced
            },
            dict(state.initial_partitions),
        )  # fmt: skip
        assert state.in_force is not None
        dealt = {share[:2] for share in state.in_force.all_shares()}
        member.saw_ours = {tp for tp in self._owned(member) & self.primary.keys()
                           if self.primary[tp].ours}  # fmt: skip
        member.decided = beginning(self._owned(member), dealt, facts, self.primary, {TOPIC: ""})
        for tp, offset in member.decided.moved.items():
            assert self.moved.get(tp) == offset, "nobody has moved it"
        for tp in self.moved.keys() & self._owned(member):
            assert tp in member.decided.moved, "a change from outside is not noticed"

    @rule(pick=PICK)
    def begin(self, pick: int) -> None:
        """A member writes what it has decided, however long ago, and begins."""
        member = self._one(pick)
        found = member.decided if member is not None else None
        if member is None or found is None or member.has_begun:
            return
        starts = found.from_primary | {tp: self.ends[tp[1]] for tp in found.from_options}
        starts |= dict.fromkeys(found.from_earliest, 0)
        before = set(self.log.state.partitions)
        self._write(member, "start", starts)
        for tp, offset in starts.items():
            if tp not in before and tp not in found.from_primary and tp[1] >= self.initial:
                assert offset == 0, "records of an added partition are skipped"
        for tp, status in self._write(member, "primary", found.noted).items():
            noted = found.noted[tp]
            if noted is not None and status == "committed":
                self.known[tp] = noted
        for tp in member.saw_ours:
            self.known.pop(tp, None)
        for tp, offset in found.moved.items():
            if self._write(member, "primary", {tp: offset}, follow=True)[tp] == "committed":
                assert self.moved.pop(tp) == offset
                self.known[tp] = offset
                self.acknowledged[tp] = set()
                event("followed")
            else:
                event("followed before")
        member.has_begun = True

    @rule(pick=PICK, partition=PICK, count=st.integers(1, 3))
    def commit(self, pick: int, partition: int, count: int) -> None:
        """A member commits the first of its own records that are not done."""
        member = self._one(pick)
        tp = (TOPIC, partition % len(self.ends))
        if member is None or not member.has_begun or tp not in self._owned(member):
            return
        commits = self.log.state.partitions[tp].commits
        left = commits.uncommitted(0, self.ends[tp[1]] - 1).offsets() if self.ends[tp[1]] else []
        of, at = (1, 0) if tp == self._last else (member.of, member.at)
        mine = [int(offset) for offset in left if offset % of == at][:count]
        if mine:
            part = Part(*tp, offsets=OffsetRanges([(offset, offset) for offset in mine]))
            answer = self.log.write("commit", epoch=member.epoch, member=member.id, parts=(part,))
            assert answer.counted
            self.acknowledged.setdefault(tp, set()).update(mine)

    @rule(partition=PICK, is_noted=st.booleans())
    def mirror(self, partition: int, is_noted: bool) -> None:
        """The owner of hash 0 writes Kafka's offset; it may be killed before the log knows."""
        tp = (TOPIC, partition % len(self.ends))
        owners = [m for m in self.members if tp in self._owned(m)]
        first = next((m for m in owners if m.at == 0 or tp == self._last), None)
        if first is None or not first.has_begun:
            return
        state = self.log.state.partitions[tp]
        self.primary[tp] = Primary(state.commits.stable_offset, ours=True, topic_id="")
        if is_noted:
            if state.primary is not None:
                self._write(first, "primary", {tp: None})
            self.known.pop(tp, None)
        else:
            self.members.remove(first)

    @rule(pick=PICK)
    def kill(self, pick: int) -> None:
        """A member is gone."""
        member = self._one(pick)
        if member is not None:
            self.members.remove(member)

    # -- others

    @rule(partition=PICK, offset=st.integers(0, 9), first=st.booleans())
    def move(self, partition: int, offset: int, first: bool) -> None:
        """A tool sets Kafka's offset while the group has no member, maybe to where it started."""
        if self.members:
            return
        tp = (TOPIC, partition % len(self.ends))
        state = self.log.state.partitions.get(tp)
        if first and state is not None and state.primary is not None:
            offset = state.primary.offset
        self.primary[tp] = Primary(offset, ours=False, topic_id="")
        self.moved.pop(tp, None)
        if state is None or offset in (state.commits.stable_offset, self.known.get(tp)):
            return
        self.moved[tp] = offset
        event("moved")

    @rule(count=st.integers(1, 3))
    def produce(self, count: int) -> None:
        """Every partition gets new records."""
        self.ends = [end + count for end in self.ends]

    @rule(records=st.integers(0, 5))
    def add_partition(self, records: int) -> None:
        """A partition is added, and gets records before anybody sees it."""
        if len(self.ends) < 5:
            self.ends.append(records)

    # -- what must hold

    @invariant()
    def what_was_acknowledged_is_committed(self) -> None:
        """Nothing but a change from outside takes an acknowledged commit away."""
        for tp, offsets in self.acknowledged.items():
            commits = self.log.state.partitions[tp].commits
            gone = {o for o in offsets if o >= commits.stable_offset and o not in commits.ranges}
            assert not gone, f"{tp}: {gone}"

    @invariant()
    def all_partitions_start_at_once(self) -> None:
        """Once a member has begun, the log knows all partitions of its epoch."""
        if any(member.has_begun for member in self.members) and self.log.state.in_force:
            dealt = {share[:2] for share in self.log.state.in_force.all_shares()}
            assert dealt <= self.log.state.partitions.keys()

    def _one(self, pick: int) -> Member | None:
        return self.members[pick % len(self.members)] if self.members else None

    def _owned(self, member: Member) -> set[tuple[str, int]]:
        assert self.log.state.in_force is not None
        return {share[:2] for share in self.log.state.in_force.members[member.id]}

    def _write(
        self, member: Member, kind: str, offsets: dict, *, follow: bool = False
    ) -> dict[tuple[str, int], str]:
        if not offsets:
            return {}
        parts = tuple(Part(*tp, first=offset) for tp, offset in offsets.items())
        answer = self.log.write(
            kind, epoch=member.epoch, member=member.id, parts=parts,
            detail={"follow": True} if follow else {},
        )  # fmt: skip
        assert answer.counted
        return {tp: result.status for tp, result in answer.results.items()}


OffsetsMachine.TestCase.settings = settings(
    max_examples=examples(300), stateful_step_count=40, deadline=None
)
TestOffsets = OffsetsMachine.TestCase
