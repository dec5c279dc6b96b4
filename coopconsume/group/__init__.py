"""Membership in a Kafka consumer group whose members share partitions by key range."""

from coopconsume.group.member import GroupMember, Tenant

__all__ = ["GroupMember", "Tenant"]
