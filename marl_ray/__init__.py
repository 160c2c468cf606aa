"""Reinforcement learning of several cooperating language models on code tasks, distributed with Ray."""

__version__ = "0.2.0"
