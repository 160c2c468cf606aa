"""Compare the gradient of an update with CoMLRL's on the same trees: cosine, and ratio of norms (marl_ray / CoMLRL).

    python -m benchmarks.gradient_parity            # seconds; the first call installs CoMLRL and takes minutes

Both sides get the same model (0.36 M random parameters, float32) and the same random prompts, completions and rewards,
and compute returns, advantages and the loss with their own code: marl_ray from the tree to the optimizer's gradient,
CoMLRL 1.4.3 with the methods of its MAGRPO and MADPO trainers, in its own environment.

"unchanged" is CoMLRL as released. "corrected" is CoMLRL without its known errors: it trains on padding and not on the
last token, takes log-probabilities at temperature 1 for every sampling temperature, and sums returns over joint
actions with joint mode cross instead of averaging; MADPO leaves out the last token too, and every token from the first
one on that is also the padding token. Corrected gradients must agree: the exit code is 1 if a cosine or ratio is not 1
to 5 digits. Whitening differs: marl_ray adds 1e-6 to the standard deviation, CoMLRL clamps it at 1e-6. Cases with
whitening must agree to 4 digits.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.throughput import make_model
from benchmarks.throughput_comlrl import COMLRL, comlrl_python
from marl_ray.config import Config, from_tree
from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion, Episode, JointAction, Node, Outcome, Task, sibling_calls
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import trainable_rows, unweighted_row
from marl_ray.rollout import JOINT_MODES
from tests.credit.whole_batches import build_agent_batch

HERE = Path(__file__).resolve().parent
DIGITS, DIGITS_WHITENED = 1e-5, 1e-4
TASKS = 2
VOCABULARY = 400
MODES = {"magrpo": "mean", "marloo": "rloo", "maremax": "max", "mareinforce": "raw"}
"""CoMLRL's name of each estimator."""
Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One comparison, of the last agent's gradient."""

    name: str
    estimator: str = "magrpo"
    whitened: bool = False
    temperature: float = 1.0
    turn_weights: tuple[float, ...] = (1.0,)
    agents: int = 2
    group: int = 4
    joint_mode: str = "aligned"
    pairs: int = 0
    """Preferences per group, with estimator madpo."""
    beta: float = 0.1

    @property
    def turns(self) -> int:
        return len(self.turn_weights)

    def config(self, model: str) -> Config:
        """Return the configuration of the marl_ray side."""
        section = {
            "num_agents": self.agents,
            "num_turns": self.turns,
            "num_generations": self.group,
            "turn_gradient_weights": list(self.turn_weights),
            "joint_mode": self.joint_mode,
            "estimator": self.estimator,
            "normalize_advantages": self.whitened,
        }
        if self.pairs:
            section |= {"preference_pairs": self.pairs, "preference_beta": self.beta}
        model_section = {"name": model, "temperature": self.temperature, "top_p": 1.0, "top_k": None}
        tree = {"compat": "comlrl", "model": model_section, "dataset": {"name": "bundled:toy"}, "magrpo": section}
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
    Case("madpo", "madpo", pairs=1),
    Case("madpo, 4 pairs, beta 0.5", "madpo", agents=3, pairs=4, beta=0.5),
    Case("cross, tree, 0.6, whitened", "magrpo", True, 0.6, (1.2, 0.8), joint_mode="cross", group=2),
)


def random_tree(case: Case, rng: random.Random, turn: int = 0) -> Node:
    """Return a random full tree."""

    def ids(longest: int) -> tuple[int, ...]:
        return tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randint(2, longest)))

    def answer() -> Completion:
        tokens = ids(12)
        return Completion(tokens, "", (-1.0,) * len(tokens), "stop", ((0, len(tokens)),))

    groups = [[answer() for _ in range(case.group)] for _ in range(case.agents)]
    actions = []
    for indices in JOINT_MODES.get(case.joint_mode)([case.group] * case.agents):
        reward = rng.choice((0.0, 0.4, 1.0, 2.1, 4.0)) + rng.random()
        actions.append(JointAction(indices, Outcome(reward), reward, (reward,) * case.agents))
    calls = [list(sibling_calls(ids(20), group, agent)) for agent, group in enumerate(groups)]
    node = Node(turn, calls, actions)
    if turn + 1 < case.turns:
        node.children = {index: random_tree(case, rng, turn + 1) for index in range(len(actions))}
        node.transitions = {index: {} for index in node.children}
    return node


def serialize_tree(node: Node, key: str = "root") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tree's nodes by their path, in the format of the CoMLRL side."""
    actions = {"-".join(map(str, action.indices)): action.reward for action in node.joint_actions}
    yield (
        key,
        {
            "prompt_ids": [calls[0].prompt_ids for calls in node.calls],
            "completions": [[call.completion.token_ids for call in calls] for calls in node.calls],
            "rewards": actions,
        },
    )
    for index, child in node.children.items():
        yield from serialize_tree(child, f"{key}/{list(actions)[index]}")


def our_gradient(case: Case, roots: list[Node], model: str) -> Gradients:
    """Return the gradient that the optimizer would get."""
    config, agent = case.config(model), case.agents - 1
    episodes = [Episode(Task(str(number), "", {}), root) for number, root in enumerate(roots)]
    learner = Learner(*learner_arguments(config, config.policy_of(agent), total_steps=1))
    for root in roots if case.pairs else ():
        set_logprobs(root, learner)
    (mini_batch,) = build_agent_batch(episodes, agent, 0, config).mini_batches
    gradient = GradientAccumulator(learner.logprob_model, learner.settings)
    gradient.add(trainable_rows(mini_batch.groups), len(mini_batch.groups))
    gradient.close(mini_batch.normalizer)
    return {name: p.grad.cpu() for name, p in learner.policy.named_parameters() if p.grad is not None}


def set_logprobs(node: Node, learner: Learner) -> None:
    """Set the log-probabilities of the sampled tokens to the model's, as an engine would return them."""
    for calls in node.calls:
        row = unweighted_row(Group(node.turn, tuple(calls), ()))
        found = learner.logprob_model.logprobs([row], learner.settings.tokens_per_microbatch)
        for place, (call, logprobs) in enumerate(zip(calls, found, strict=True)):
            calls[place] = replace(call, completion=replace(call.completion, logprobs=tuple(logprobs.tolist())))


def their_gradients(
    trees: dict[Case, list[Node]], model: str, padding: int, python: str, folder: Path
) -> dict[str, dict[str, Gradients]]:
    """Return CoMLRL's gradients by case and kind."""
    cases = [
        {
            "name": case.name,
            "mode": MODES.get(case.estimator),
            "pairs": case.pairs,
            "beta": case.beta,
            "whitened": case.whitened,
            "temperature": case.temperature,
            "turn_weights": case.turn_weights,
            "turns": case.turns,
            "agents": case.agents,
            "agent": case.agents - 1,
            "group": case.group,
            "joint_mode": case.joint_mode,
            "padding": padding,
            "tasks": [dict(serialize_tree(root)) for root in roots],
        }
        for case, roots in trees.items()
    ]
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
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
    """Return the cosine and the ratio of norms."""
    if ours.keys() != theirs.keys():
        sys.exit(f"the two sides have different parameters: {sorted(ours.keys() ^ theirs.keys())}")
    one, other = (torch.cat([g[name].double().flatten() for name in sorted(ours)]) for g in (ours, theirs))
    return float(one @ other / (one.norm() * other.norm())), float(one.norm() / other.norm())


def main() -> None:
    """Compute all cases and print a table."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "marl-ray" / COMLRL.replace("==", "-")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of trees and model (default 0)")
    parser.add_argument("--comlrl-env", type=Path, default=cache, help=f"CoMLRL's environment (default {cache})")
    arguments = parser.parse_args()
    python = comlrl_python(arguments.comlrl_env)
    rng = random.Random(arguments.seed)
    trees = {case: [random_tree(case, rng) for _ in range(TASKS)] for case in CASES}
    all_agree = True
    with tempfile.TemporaryDirectory(prefix="marl-ray-parity-") as temporary:
        folder = Path(temporary)
        make_model([case.name for case in CASES], folder / "model")
        model = str(folder / "model")
        theirs = their_gradients(trees, model, VOCABULARY, python, folder)
        print(f"{'':28} {'unchanged':^22}   {'corrected':^22}")
        print(f"{'':28} {'cosine':>11} {'norms':>10}   {'cosine':>11} {'norms':>10}")
        for case, roots in trees.items():
            ours = our_gradient(case, roots, model)
            unchanged, corrected = (compare(ours, theirs[case.name][kind]) for kind in ("unchanged", "corrected"))
            bound = DIGITS_WHITENED if case.whitened else DIGITS
            all_agree &= all(abs(number - 1) < bound for number in corrected)
            numbers = "   ".join(f"{cosine:11.9f} {ratio:10.6f}" for cosine, ratio in (unchanged, corrected))
            print(f"{case.name:28} {numbers}", flush=True)
    sys.exit(not all_agree)


if __name__ == "__main__":
    main()
