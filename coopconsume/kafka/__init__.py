"""Access to Kafka: settings, security, the admin client, groups and producers."""

from coopconsume.kafka.cluster import Cluster, Primary, Topic, primary_mark

__all__ = ["Cluster", "Primary", "Topic", "primary_mark"]
