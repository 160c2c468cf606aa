"""Tests of the rows of programming contests."""
