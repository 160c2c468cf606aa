"""Tests, from their text to single cases: pure functions, which never look at a program.

Run in the judge, and in the owner, which counts tests before it sends anything. Imports nothing but the standard
library.
"""
