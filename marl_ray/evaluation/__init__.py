"""Evaluation without training: models on a split (`evaluate`), and given completions (`scoring`)."""
