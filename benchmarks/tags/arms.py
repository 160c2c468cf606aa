"""The compared ways to train readers of the environment `tags`."""

from __future__ import annotations

from benchmarks.learning.study import CONFIGS, FROZEN, JOINT, Arm, Study
from marl_ray.plugins.tags import TEXTS_PATH

TAGS = Study(
    name="tags",
    config=CONFIGS / "magrpo_tags_smollm2.yaml",
    common={},
    groups={
        "who learns": {
            JOINT: Arm("both learn", {}),
            "only_first": Arm("only the first learns", {"agents": f"[{{}}, {FROZEN}]"}),
            "shared": Arm("one policy for both", {"magrpo.policy": 0}),
            "entropy": Arm("both learn, entropy bonus 0.02", {"magrpo.entropy_coef": 0.02}),
            "entropy_small": Arm("both learn, entropy bonus 0.002", {"magrpo.entropy_coef": 0.002}),
        },
        "one agent": {
            "single_path": Arm("one agent, tokens of one", {"magrpo.num_agents": 1}),
            "single_total": Arm("one agent, tokens of both", {"magrpo.num_agents": 1, "magrpo.max_new_tokens": 28}),
        },
    },
    files=(TEXTS_PATH,),
    columns={
        "partners": "different words",
        "twice": "one agent asked twice",
        "gain": "difference",
        "shared": "shared words",
        "position_1": "earlier position",
        "position_2": "later position",
        "copied": "copied",
    },
    compared=(),
    drawn=("reward_mean", "different words of six"),
    marked=True,
    extra_metrics=lambda run, step, last: {},
)
"""Arms of one and two agents have the same number of steps, tasks and joint actions per step."""
