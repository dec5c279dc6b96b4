"""The demo: flights of a year, processed in order for each aircraft."""
