"""One suite of situations that runs over every part that reads records or keeps offsets."""
