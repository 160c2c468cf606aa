"""Self-play of small Hanabi (docs/examples/hanabi.py) by two policies, and by one policy in both seats."""

from __future__ import annotations

from benchmarks.learning.study import CONFIGS, JOINT, Arm, Study
from marl_ray.plugins.games import HANABI_BASE_PATH

HANABI = Study(
    name="hanabi",
    config=CONFIGS / "toy_hanabi.yaml",
    common={"output.episodes_per_step": 103},
    groups={
        "self-play": {
            JOINT: Arm("two policies", {}),
            "shared": Arm("one policy in both seats", {"magrpo.policy": 0}),
        }
    },
    files=(HANABI_BASE_PATH / "model.safetensors", CONFIGS.parent / "docs" / "examples" / "hanabi.py"),
    columns={"reward": "reward", "passed": "all six cards"},
    compared=("reward",),
    drawn=("reward_mean", "reward of a step's games"),
    in_process=True,
)
