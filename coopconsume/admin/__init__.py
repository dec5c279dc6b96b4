"""What operators see and change of a group: status, offsets, dead letters, views, pictures."""
