"""Compare the update of each trainer of CoMLRL on the same rollouts: gradient, and time.

    python -m benchmarks.trainer_parity             # minutes; the first call installs CoMLRL and takes longer

Both sides get the same model (0.36 M random parameters, float32), prompts, completions, rewards and, with a critic, the
same value head. CoMLRL 1.4.3 runs unchanged in its own environment: only its sampling and its tokenization of prompts
are replaced. The table has the cosine and the ratio of norms (marl_ray / CoMLRL) of the gradient of policy and critic
together, and the times of one update, medians over alternating blocks of both sides with one thread. The ratio of times
(CoMLRL / marl_ray) is the median over neighbouring blocks. The exit code is 1 if a cosine differs from 1 by more than
1e-6 or a ratio of norms by more than 1e-5.

MAGRPO and MADPO differ by known errors of CoMLRL, for which `benchmarks.gradient_parity` corrects, so their gradients
are not compared here. Q critics (`critic_type: q`) have no counterpart: their value of prompt and answer is the
baseline of the same answer, so that the advantage vanishes as the critic learns. CoMLRL has no GAE.

A timed update is one optimizer step from complete groups, for one agent, with MADPO for all agents. The updates of
marl_ray also compute the values before the update, which CoMLRL computes during the rollout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gradient_parity import Gradients, compare
from benchmarks.throughput import make_model
from benchmarks.throughput_comlrl import COMLRL, comlrl_python
from marl_ray.config import Config, from_tree
from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion, Episode, JointAction, Node, Outcome, Task, sibling_calls
from marl_ray.core.preference import preferences_by_return
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.plugins.preferences.preference_file import WrittenPreference
from marl_ray.plugins.preferences.preference_training import PreferenceTrainer
from marl_ray.plugins.preferences.reward_models.preference_fit import RewardModelTrainer, TextPair
from marl_ray.plugins.preferences.reward_models.reward_model import RewardModel
from tests.credit.whole_batches import build_agent_batch

HERE = Path(__file__).resolve().parent
COSINE, RATIO = 1e-6, 1e-5
TASKS, PAIRS, PROMPT, ANSWER = 4, 4, 96, (8, 48)
"""Tasks, preferences per task, and lengths of prompts and answers in tokens."""
TOKENS = range(10, 400)
"""Sampled token ids: no special tokens, at which CoMLRL ends an answer."""
WORDS = ("red", "green", "blue", "one", "two", "three", "call", "return", "helper", "main", "value")
Update = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """An update of a trainer of CoMLRL."""

    name: str
    trainer: str
    agents: int = 2
    group: int = 8
    turns: int = 1
    whitened: bool = False
    own: bool = True
    """Whether the critic of iac has layers of its own."""
    compared: bool = True
    """Whether gradients are compared."""
    discount: float = 0.9

    @property
    def critic(self) -> str:
        return self.trainer if self.trainer in ("iac", "maac") else "none"

    def config(self, model: str) -> Config:
        """Return the configuration of the marl_ray side."""
        section: dict[str, Any] = {
            "num_agents": self.agents,
            "num_turns": self.turns,
            "num_generations": self.group,
            "normalize_advantages": self.whitened,
            "discount": self.discount,
            "early_termination_threshold": None,
            "max_new_tokens": ANSWER[1],
        }
        if self.critic != "none":
            section |= {"critic": self.critic, "critic_target": "td", "value_loss_coef": 0.6}
        if self.critic == "iac":
            section["critic_body"] = "own" if self.own else "shared"
        model_section = {"name": model, "temperature": 1.0, "top_p": 1.0, "top_k": None}
        tree = {"compat": "comlrl", "model": model_section, "dataset": {"name": "bundled:toy"}, "magrpo": section}
        return from_tree(tree, "magrpo")


CASES = (
    Case("magrpo", "magrpo", compared=False),
    Case("centralized_magrpo", "centralized_magrpo", agents=1),
    Case("centralized_magrpo, whitened", "centralized_magrpo", agents=1, whitened=True),
    Case("iac", "iac"),
    Case("iac, whitened", "iac", whitened=True),
    Case("iac, shared layers", "iac", own=False),
    Case("iac, 2 turns", "iac", group=1, turns=2),
    Case("maac", "maac"),
    Case("maac, 2 turns", "maac", group=1, turns=2),
    Case("madpo", "madpo", compared=False),
    Case("marlhf, reward model", "marlhf"),
)


def random_node(case: Case, rng: random.Random, turn: int = 0) -> Node:
    """Return a random node with aligned joint actions, and its descendants."""

    def ids(length: int) -> tuple[int, ...]:
        return tuple(rng.choice(TOKENS) for _ in range(length))

    def answer() -> Completion:
        tokens = ids(rng.randint(*ANSWER) - 1)
        return Completion(tokens, "", (-1.0,) * len(tokens), "stop", ((0, len(tokens)),))

    groups = [[answer() for _ in range(case.group)] for _ in range(case.agents)]
    rewards = [4 * rng.random() for _ in range(case.group)]
    actions = [JointAction((g,) * case.agents, Outcome(r), r, (r,) * case.agents) for g, r in enumerate(rewards)]
    calls = [list(sibling_calls(ids(PROMPT), group, agent)) for agent, group in enumerate(groups)]
    node = Node(turn, calls, actions)
    if turn + 1 < case.turns:
        node.children, node.transitions = {0: random_node(case, rng, turn + 1)}, {0: {}}
    return node


def serialize(node: Node, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a node and its descendants, one per turn, by their keys."""
    child = f"{key}/0" if node.children else None
    yield (
        key,
        {
            "prompt_ids": [calls[0].prompt_ids for calls in node.calls],
            "completions": [[call.completion.token_ids for call in calls] for calls in node.calls],
            "rewards": [action.reward for action in node.joint_actions],
            "child": child,
        },
    )
    if child is not None:
        yield from serialize(node.children[0], child)


def make_texts(rng: random.Random) -> list[tuple[str, str]]:
    """Return pairs of texts."""
    return [(text(rng), text(rng)) for _ in range(8)]


def text(rng: random.Random) -> str:
    """Return a random text."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(20, 60)))


def random_head(features: int) -> dict[str, torch.Tensor]:
    """Return the weights of a value head."""
    generator = torch.Generator().manual_seed(7)
    return {"weight": 0.2 * torch.randn(1, features, generator=generator), "bias": torch.tensor([0.3])}


def gradients_of(module: torch.nn.Module, prefix: str = "") -> Gradients:
    """Return the gradients of a module's parameters by name."""
    return {prefix + name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def our_update(
    case: Case, roots: list[Node], texts: list[tuple[str, str]], head: dict[str, torch.Tensor], model: str
) -> tuple[Update, Callable[[], Gradients]]:
    """Return the update of marl_ray and its gradients."""
    config, agent = case.config(model), case.agents - 1
    if case.trainer == "marlhf":
        return reward_model_update(config, texts, head, model)
    if case.trainer == "madpo":
        return preference_update(config, roots)
    episodes = [Episode(Task(str(number), "", {}), root) for number, root in enumerate(roots)]
    learner = Learner(*learner_arguments(config, config.policy_of(agent), total_steps=100))
    if learner.critic is not None:
        learner.critic.head.load_state_dict(head)
    batch = build_agent_batch(episodes, agent, 0, config)

    def gradients() -> Gradients:
        found = gradients_of(learner.policy)
        if learner.critic is not None:
            value_head, body = learner.critic.modules()
            found |= gradients_of(value_head, "critic.head.")
            if body is not learner.policy:
                found |= gradients_of(body, "critic.body.")
        return found

    return lambda: learner.update(replace(batch, step=learner.step)), gradients


def reward_model_update(
    config: Config, texts: list[tuple[str, str]], head: dict[str, torch.Tensor], model: str
) -> tuple[Update, Callable[[], Gradients]]:
    """Return the update of a reward model and its gradients."""
    trainer = RewardModelTrainer(RewardModel.load(model), config.training, 1e-5, steps=100)
    network = trainer.model.model
    with torch.no_grad():
        network.score.weight.copy_(head["weight"])
    pairs = [TextPair("", chosen, rejected) for chosen, rejected in texts]

    def gradients() -> Gradients:
        return gradients_of(network.model, "body.") | {"head": network.score.weight.grad.clone()}

    return lambda: trainer.step(pairs), gradients


def preference_update(config: Config, roots: list[Node]) -> tuple[Update, Callable[[], Gradients]]:
    """Return the update of all agents from the pairs of all tasks, and the last agent's gradients."""
    trainer = PreferenceTrainer(config, steps=100, has_reference=False)
    preferences = []
    for root in roots:
        for pair in preferences_by_return([action.reward for action in root.joint_actions], PAIRS):
            chosen, rejected = (
                tuple(Group(0, (calls[index],), (1.0,)) for calls in root.calls)
                for index in (pair.chosen, pair.rejected)
            )
            preferences.append(WrittenPreference(chosen, rejected))
    learner = list(trainer.learners.values())[-1]
    return (
        lambda: trainer.step(preferences),
        lambda: gradients_of(learner.policy),
    )


class OtherSide:
    """The process of CoMLRL's trainers."""

    def __init__(self, python: str, model: str, folder: Path) -> None:
        quiet = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        quiet |= {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONPATH": ""}
        self._process = subprocess.Popen(
            [python, str(HERE / "trainer_comlrl.py"), model, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | quiet,
            encoding="utf-8",
        )

    def seconds(self, case: Case) -> float:
        """Return the seconds of one update of a case."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(case.name, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        sys.exit("the CoMLRL side failed")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    """Compute all cases and print a table."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "marl-ray" / COMLRL.replace("==", "-")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of rollouts (default 0)")
    parser.add_argument("--blocks", type=int, default=9, help="updates of each side that are timed (default 9)")
    parser.add_argument("--comlrl-env", type=Path, default=cache, help=f"CoMLRL's environment (default {cache})")
    arguments = parser.parse_args()
    python = comlrl_python(arguments.comlrl_env)
    rng = random.Random(arguments.seed)
    torch.set_num_threads(1)
    trees = {case: [random_node(case, rng) for _ in range(TASKS)] for case in CASES}
    texts = make_texts(rng)
    all_agree = True
    with tempfile.TemporaryDirectory(prefix="marl-ray-parity-") as temporary:
        folder = Path(temporary)
        make_model([" ".join(WORDS), *(text(rng) for _ in range(50))], folder / "model")
        model = str(folder / "model")
        head = random_head(json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))["hidden_size"])
        cases = [
            vars(case)
            | {"number": number, "critic": case.critic, "pairs": PAIRS, "texts": texts, "roots": list("0123"[:TASKS])}
            | {"head": {name: tensor.tolist() for name, tensor in head.items()}}
            | {"nodes": {k: v for n, root in enumerate(trees[case]) for k, v in serialize(root, str(n))}}
            for number, case in enumerate(CASES)
        ]
        (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
        other = OtherSide(python, model, folder)
        print(f"{'':30} {'cosine':>11} {'norms':>10} {'CoMLRL ms':>10} {'here ms':>9} {'ratio':>6}")
        for number, case in enumerate(CASES):
            update, gradients = our_update(case, trees[case], texts, head, model)
            update()
            found = gradients()
            other.seconds(case)
            cosine, ratio = "-", "-"
            if case.compared:
                one, norms = compare(found, torch.load(folder / f"{number}.pt", weights_only=True))
                all_agree &= abs(one - 1) < COSINE and abs(norms - 1) < RATIO
                cosine, ratio = f"{one:.9f}", f"{norms:.6f}"
            theirs, ours = [], []
            for _ in range(arguments.blocks):
                theirs.append(1000 * other.seconds(case))
                started = time.perf_counter()
                update()
                ours.append(1000 * (time.perf_counter() - started))
            speed = statistics.median(t / o for t, o in zip(theirs, ours, strict=True))
            times = f"{statistics.median(theirs):10.1f} {statistics.median(ours):9.1f} {speed:6.2f}"
            print(f"{case.name:30} {cosine:>11} {ratio:>10} {times}", flush=True)
        other.close()
    sys.exit(not all_agree)


if __name__ == "__main__":
    main()
