"""Advantage estimators, one class each, with its paper, its formula and its requirements.

The classes read tensors without importing torch, so that a config is checked without it.
"""
