"""Test suites: splits test sources into single cases, with pure functions that never read a program.

The judge and the host (which counts tests before it sends them) use this package. It imports only the standard library.
"""
