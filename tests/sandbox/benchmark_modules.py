"""Benchmark modules for tests that run them in short form; `benchmarks` is not an installed package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

sandbox_programs = import_module("benchmarks.sandbox_programs")
sandbox_soak = import_module("benchmarks.sandbox_soak")
sandbox_throughput = import_module("benchmarks.sandbox_throughput")
