"""The process of one program, and the only one that runs it: answers what the judge asks.

Nothing in here is relied on, since the program can rewrite it. Imports `wire`, never `judge` or `suites`.
"""
