"""The judge process, between host and guest: holds the tests, evaluates them and writes the report.

The judge runs no code of a program and treats every message of a guest as untrusted input. It imports `suites`,
`protocol` and `isolation`, never `guest`.
"""
