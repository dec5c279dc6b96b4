"""Membership in a Kafka consumer group whose members share partitions by key range."""

from coopconsume.group.member import AssignmentOwner, GroupMember

__all__ = ["AssignmentOwner", "GroupMember"]
