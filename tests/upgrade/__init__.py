"""Other versions of the library, for tests of what one of them leaves to another."""
