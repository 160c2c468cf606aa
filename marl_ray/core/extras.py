"""Extras of the package, by the optional modules that they install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from marl_ray.core.errors import UserError

REQUIRED = ("numpy", "yaml", "pydantic", "jinja2", "matplotlib", "tqdm", "shtab", "starlette", "uvicorn")
"""Modules of the packages that an installation without extras has."""
TRAINING = "'marl-ray[cpu]', or 'marl-ray[gpu]' for GPUs"
EXTRAS = {
    **dict.fromkeys(
        ("torch", "transformers", "ray", "grpc", "datasets", "pyarrow", "safetensors", "huggingface_hub", "vllm"),
        TRAINING,
    ),
    **dict.fromkeys(("openai", "anthropic", "httpx2"), "'marl-ray[experts]'"),
    **dict.fromkeys(("gguf", "accelerate"), "'marl-ray[smollm2]'"),
    "peft": "'marl-ray[lora]'",
    "bitsandbytes": "'marl-ray[adamw-8bit]'",
    **dict.fromkeys(("textual", "rich"), "'marl-ray[view]'"),
}
"""Argument of `pip install` by the name of a module that the package imports but does not require."""


def missing_module(name: str) -> UserError:
    """Return the error for a module of EXTRAS that is not installed."""
    return UserError(f"this needs {name}: pip install {EXTRAS[name]}")


@contextmanager
def explain_missing_modules() -> Iterator[None]:
    """Raise UserError in place of the ModuleNotFoundError of a module of EXTRAS."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in EXTRAS:
            raise
        raise missing_module(name) from None
