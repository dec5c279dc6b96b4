"""Planted faults: one small source edit per rule, with the tests that must fail under it.

``python -m tests.mutants`` applies them one by one to a copy of the sources and runs their tests.
A rule without a mutant that a test catches is not tested.
"""
