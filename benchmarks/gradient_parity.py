"""The gradient of an update beside CoMLRL's, from the same trees: cosine and ratio of norms, marl_ray's over CoMLRL's.

    python -m benchmarks.gradient_parity            # some seconds; the first call installs CoMLRL, some minutes

Both sides get the same model (0.36 M random parameters, float32), the same prompts, answers and rewards, at random, and
make returns, advantages and the loss of them with their own code: ours from the tree to the gradient that AdamW would
be given, theirs with the methods of the MAGRPO trainer of CoMLRL 1.4.3, in an environment of its own.

"as it is" is CoMLRL untouched. "made up for" is CoMLRL without what is known to be wrong there: padding after an answer
is trained on and the last token is not, log-probabilities are those at temperature 1 whatever was sampled at, and with
joint mode cross returns are summed over the joint actions that hold an answer, not averaged. Then the two must agree:
the exit code is 1 where a cosine or a ratio is not 1 to 5 digits. Whitened advantages differ by 1e-6 of a deviation,
which is added here and the least there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.throughput import make_model
from benchmarks.throughput_comlrl import COMLRL, comlrl_python
from marl_ray.config import Config, from_tree
from marl_ray.core.episode import Completion, Episode, JointAction, Node, Outcome, Task
from marl_ray.credit.groups import build_agent_batch
from marl_ray.learning.arguments import local_learner_arguments
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import trainable_rows
from marl_ray.rollout.joint_actions import JOINT_MODES

HERE = Path(__file__).resolve().parent
DIGITS = 1e-5
TASKS = 2
VOCABULARY = 400
MODES = {"magrpo": "mean", "marloo": "rloo", "maremax": "max", "mareinforce": "raw"}
"""Estimators, and what CoMLRL calls them."""
Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One comparison; the gradient is that of the last agent."""

    name: str
    estimator: str = "magrpo"
    whitened: bool = False
    temperature: float = 1.0
    turn_weights: tuple[float, ...] = (1.0,)
    agents: int = 2
    group: int = 4
    joint_mode: str = "aligned"

    @property
    def turns(self) -> int:
        return len(self.turn_weights)

    def config(self, model: str) -> Config:
        """A run of ours."""
        section = {
            "num_agents": self.agents,
            "num_turns": self.turns,
            "num_generations": self.group,
            "turn_gradient_weights": list(self.turn_weights),
            "joint_mode": self.joint_mode,
            "estimator": self.estimator,
            "normalize_advantages": self.whitened,
        }
        given = {"name": model, "temperature": self.temperature, "top_p": 1.0, "top_k": None}
        tree = {"compat": "comlrl", "model": given, "dataset": {"name": "bundled:toy"}, "magrpo": section}
        tree["magrpo"] = section | {"early_termination_threshold": None}
        return from_tree(tree, "magrpo")


CASES = (
    *(Case(name, name) for name in MODES),
    *(Case(f"{name}, whitened", name, whitened=True) for name in ("magrpo", "mareinforce")),
    Case("one agent (grpo)", agents=1),
    Case("three agents", agents=3),
    *(Case(f"temperature {t}", temperature=t) for t in (0.6, 0.8, 1.3)),
    Case("tree of 2 turns", turn_weights=(1.0, 1.0)),
    Case("tree of 3 turns", turn_weights=(1.0, 1.0, 1.0), group=2),
    Case("turn weights 1.5, 0.5", turn_weights=(1.5, 0.5)),
    Case("cross", joint_mode="cross", group=3),
    Case("cross, tree, 0.6, whitened", "magrpo", True, 0.6, (1.2, 0.8), joint_mode="cross", group=2),
)


def grow(case: Case, rng: random.Random, turn: int = 0) -> Node:
    """A whole tree at random."""

    def ids(longest: int) -> tuple[int, ...]:
        return tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randint(2, longest)))

    def answer() -> Completion:
        tokens = ids(12)
        return Completion(tokens, "", (-1.0,) * len(tokens), "stop", ((0, len(tokens)),))

    groups = [[answer() for _ in range(case.group)] for _ in range(case.agents)]
    actions = []
    for indices in JOINT_MODES[case.joint_mode]([case.group] * case.agents):
        reward = rng.choice((0.0, 0.4, 1.0, 2.1, 4.0)) + rng.random()
        actions.append(JointAction(indices, Outcome(reward), reward, (reward,) * case.agents))
    node = Node(turn, [""] * case.agents, [ids(20) for _ in range(case.agents)], groups, actions)
    if turn + 1 < case.turns:
        node.children = {index: grow(case, rng, turn + 1) for index in range(len(actions))}
        node.transitions = {index: {} for index in node.children}
    return node


def told(node: Node, key: str = "root") -> Iterator[tuple[str, dict[str, Any]]]:
    """The tree as the other side reads it: nodes by the way to them."""
    actions = {"-".join(map(str, action.indices)): action.reward for action in node.joint_actions}
    yield (
        key,
        {
            "prompt_ids": node.prompt_ids,
            "completions": [[c.token_ids for c in group] for group in node.completions],
            "rewards": actions,
        },
    )
    for index, child in node.children.items():
        yield from told(child, f"{key}/{list(actions)[index]}")


def our_gradient(case: Case, roots: list[Node], model: str) -> Gradients:
    """From trees to what AdamW would be given."""
    config, agent = case.config(model), case.agents - 1
    episodes = [Episode(Task(str(number), "", {}), root) for number, root in enumerate(roots)]
    learner = Learner(*local_learner_arguments(config, config.policy_of(agent), total_steps=1))
    (mini_batch,) = build_agent_batch(episodes, agent, 0, config).mini_batches
    gradient = GradientAccumulator(learner.logprob_model, learner.settings)
    gradient.add(trainable_rows(mini_batch.groups), len(mini_batch.groups))
    gradient.close(mini_batch.normalizer)
    return {name: p.grad.cpu() for name, p in learner.policy.named_parameters() if p.grad is not None}


def their_gradients(
    trees: dict[Case, list[Node]], model: str, padding: int, python: str, folder: Path
) -> dict[str, dict[str, Gradients]]:
    """By case and kind."""
    cases = [
        {
            "name": case.name,
            "mode": MODES[case.estimator],
            "whitened": case.whitened,
            "temperature": case.temperature,
            "turn_weights": case.turn_weights,
            "turns": case.turns,
            "agents": case.agents,
            "agent": case.agents - 1,
            "group": case.group,
            "joint_mode": case.joint_mode,
            "padding": padding,
            "tasks": [dict(told(root)) for root in roots],
        }
        for case, roots in trees.items()
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    arguments = [model, str(folder / "cases.json"), str(folder / "gradients.pt")]
    subprocess.run(
        [python, str(HERE / "gradient_comlrl.py"), *arguments],
        check=True,
        timeout=600,
        env=os.environ
        | {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        | {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"},
    )
    return torch.load(folder / "gradients.pt", weights_only=True)


def compare(ours: Gradients, theirs: Gradients) -> tuple[float, float]:
    """Cosine, and the ratio of norms."""
    if ours.keys() != theirs.keys():
        sys.exit(f"the two sides have different parameters: {sorted(ours.keys() ^ theirs.keys())}")
    one, other = (torch.cat([g[name].double().flatten() for name in sorted(ours)]) for g in (ours, theirs))
    return float(one @ other / (one.norm() * other.norm())), float(one.norm() / other.norm())


def main() -> None:
    """Compute and print."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "marl-ray" / COMLRL.replace("==", "-")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of trees and model (default 0)")
    parser.add_argument("--comlrl-env", type=Path, default=cache, help=f"its environment (default {cache})")
    arguments = parser.parse_args()
    python = comlrl_python(arguments.comlrl_env)
    rng = random.Random(arguments.seed)
    trees = {case: [grow(case, rng) for _ in range(TASKS)] for case in CASES}
    agreed = True
    with tempfile.TemporaryDirectory(prefix="marl-ray-parity-") as temporary:
        folder = Path(temporary)
        make_model([case.name for case in CASES], folder / "model")
        model = str(folder / "model")
        theirs = their_gradients(trees, model, VOCABULARY, python, folder)
        print(f"{'':28} {'as it is':^22}   {'made up for':^22}")
        print(f"{'':28} {'cosine':>11} {'norms':>10}   {'cosine':>11} {'norms':>10}")
        for case, roots in trees.items():
            ours = our_gradient(case, roots, model)
            untouched, mended = (compare(ours, theirs[case.name][kind]) for kind in ("as it is", "made up for"))
            agreed &= all(abs(number - 1) < DIGITS for number in mended)
            numbers = "   ".join(f"{cosine:11.9f} {ratio:10.6f}" for cosine, ratio in (untouched, mended))
            print(f"{case.name:28} {numbers}", flush=True)
    sys.exit(not agreed)


if __name__ == "__main__":
    main()
