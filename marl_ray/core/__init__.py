"""Data types of a run, and helpers that every package may import: no Ray, no torch, no vLLM."""
