"""Fetches the Azure emulator of the tests."""

from tests.azurite import command

command()
