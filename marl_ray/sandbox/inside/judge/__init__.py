"""The process between owner and guest: it has the tests, evaluates them, and writes the report.

It runs no code of a program, and what comes from a guest is a claim to be checked. Imports `suites`, `wire` and `wall`,
never `guest`.
"""
