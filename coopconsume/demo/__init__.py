"""The demo: a year of flights, processed in order for each aircraft."""
