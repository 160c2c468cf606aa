#!/bin/sh
# Installs marl_ray without a network into the environment of $PYTHON (python3 if it is not set):
#     PYTHON=/path/to/venv/bin/python sh install.sh
# The wheels (@MB@ MB) are unpacked into a new folder in $TMPDIR, or here if it is not set, and removed at the end.
# tools/offline_bundle.py writes this script and the values in it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python="${PYTHON:-python3}"

fail() {
    echo "install.sh: $1" >&2
    exit 1
}
accepts() { "$python" -c "import platform, sys; sys.exit(not ($1))" 2>/dev/null; }
digest() { sha256sum "$1" | cut -d " " -f 1; }
install() { "$python" -m pip --disable-pip-version-check install -q --no-index --no-deps "$@"; }

accepts True || fail "$python is no Python: set PYTHON to the Python of a virtual environment"
accepts '"%d.%d" % sys.version_info[:2] == "@PYTHON@"' || fail "these wheels are for Python @PYTHON@: set PYTHON"
accepts 'platform.system() == "Linux" and platform.machine() == "x86_64"' || fail "these wheels are for Linux on x86-64"
accepts 'int(platform.libc_ver()[1].split(".")[1]) >= @GLIBC@' || fail "these wheels need glibc 2.@GLIBC@"
"$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip: set PYTHON to the Python of a virtual environment"

[ -f "$here/SHA256SUMS" ] || fail "SHA256SUMS is missing: copy it again"
[ "$(digest "$here/SHA256SUMS")" = @SUMS@ ] || fail "SHA256SUMS is damaged or of another bundle: copy it again"
while read -r sum name; do
    [ -f "$here/$name" ] || fail "$name is missing: copy it again"
    [ "$(digest "$here/$name")" = "$sum" ] || fail "$name is damaged: copy it again"
done <"$here/SHA256SUMS"

work=$(mktemp -d "${TMPDIR:-$here}/wheels.XXXXXX") || fail "set TMPDIR to a folder with @MB@ MB of free space"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
while read -r sum name; do cat "$here/$name"; done <"$here/SHA256SUMS" |
    "$python" -W ignore -c 'import sys, tarfile
tarfile.open(fileobj=sys.stdin.buffer, mode="r|").extractall(sys.argv[1])' "$work" 2>/dev/null ||
    fail "unpacking failed: set TMPDIR to a folder with @MB@ MB of free space"

echo "installing @MB@ MB of wheels (minutes)"
install --find-links "$work" -r "$work/requirements.txt" || fail "pip could not install the packages, see above"
# pip takes two states of the repository for the same if they have the same version.
install --force-reinstall "$work"/marl_ray-*.whl || fail "pip could not install marl_ray, see above"
"$python" -P -m marl_ray --version
