"""A check that keeps words out of the sources that an engineer would have to guess at."""
