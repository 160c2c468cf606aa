"""Test suites: pure functions that split test sources into single cases, for the judge and for the host process."""
