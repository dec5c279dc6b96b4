"""The demo: a year of flights, followed aircraft by aircraft."""
