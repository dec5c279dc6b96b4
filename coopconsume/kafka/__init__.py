"""The Kafka cluster as the driver sees it: logs and their ends, groups, settings, switches."""

from coopconsume.kafka.cluster import Cluster, Primary, Topic, primary_mark

__all__ = ["Cluster", "Primary", "Topic", "primary_mark"]
