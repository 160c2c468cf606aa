#!/usr/bin/env bash
# Submit a training job to a running Ray cluster and follow its log.
set -euo pipefail

usage() {
    cat >&2 <<'TEXT'
usage: deploy/submit.sh ALGORITHM CONFIG [OPTION...]
       deploy/submit.sh ALGORITHM --resume RUN_DIR [OPTION...]

ALGORITHM   magrpo or grpo
CONFIG      a YAML file in this repository, which is uploaded for the job
RUN_DIR     folder of an earlier run, on the cluster
OPTION      passed to the training command, for example --override magrpo.num_turns=2

environment:
  RAY_DASHBOARD   address of the cluster's job server (default http://127.0.0.1:8265)
  RUNS_DIR        absolute folder for results, on a file system that every node mounts; required unless the config or
                  an --override sets an absolute output.base_dir
  SUBMIT_OPTIONS  additional options of `ray job submit`, separated by spaces, for example "--no-wait"

A cluster with token authentication also needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH).
TEXT
}

fail() {
    echo "submit.sh: $1" >&2
    exit 2
}

case "${1:-}" in
-h | --help)
    usage
    exit 0
    ;;
esac
if [ $# -lt 2 ]; then
    usage
    exit 2
fi

algorithm=$1
shift
case "$algorithm" in
magrpo | grpo) ;;
*) fail "algorithm '$algorithm' is neither magrpo nor grpo" ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
command=(python -m "marl_ray.train_$algorithm")

# The job runs in a temporary copy of this repository that Ray deletes later, so results in a relative output.base_dir
# would be lost.
has_absolute_output() {
    local argument
    for argument in "$@"; do
        [[ $argument == output.base_dir=/* ]] && return 0
    done
    grep -Eq "^[[:space:]]+base_dir:[[:space:]]*[\"']?/" "$config"
}

if [ "$1" = --resume ]; then
    [ $# -ge 2 ] || fail "--resume needs the folder of a run"
    [[ $2 == /* ]] || fail "--resume $2: use the absolute path on the cluster"
else
    [ -f "$1" ] || fail "config $1 does not exist"
    config=$(realpath "$1")
    [[ $config == "$root"/* ]] || fail "config $1 is outside $root and would not be uploaded"
    within=${config#"$root"/}
    ! grep -qF "\"/${within%%/*}\"" "$root/deploy/runtime_env.yaml" ||
        fail "config $1 is in a folder that deploy/runtime_env.yaml excludes from the upload: move it to configs/"
    shift
    command+=(--config "$within")
    if [ -n "${RUNS_DIR:-}" ]; then
        [[ $RUNS_DIR == /* ]] || fail "RUNS_DIR $RUNS_DIR is not an absolute path"
        command+=(--override "output.base_dir=$RUNS_DIR")
    elif ! has_absolute_output "$@"; then
        fail "set the folder for results: RUNS_DIR=/shared/folder, or --override output.base_dir=/..."
    fi
fi
command+=("$@")

ray=ray
if [ -x "$root/.venv/bin/ray" ] && ! command -v ray >/dev/null; then
    ray="$root/.venv/bin/ray"
fi
read -ra submit_options <<<"${SUBMIT_OPTIONS:-}"

cd "$root"
exec "$ray" job submit --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" \
    --runtime-env deploy/runtime_env.yaml --working-dir . \
    ${submit_options[@]+"${submit_options[@]}"} -- "${command[@]}"
