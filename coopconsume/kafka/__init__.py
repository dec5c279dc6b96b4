"""Access to Kafka: settings, security, the admin client, groups and producers."""
