"""The CoMLRL side of `trainer_parity.py`, started as a script in CoMLRL's own environment.

The trainers run unchanged on the given rollouts: only sampling and tokenization of prompts are replaced by the given
token ids. A line of stdin names a case. The first time its gradients are written to a file; each time the seconds of
one update are printed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from comlrl.trainers.actor_critic import IACConfig, IACTrainer, MAACConfig, MAACTrainer
from comlrl.trainers.preference import MADPOConfig, MADPOTrainer, MARLHFConfig, MARLHFTrainer
from comlrl.trainers.preference.collaboration import joint_policy_gradient_loss
from comlrl.trainers.preference.madpo import AgentPreferenceTensors, PreferencePair
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from transformers.utils.logging import disable_progress_bar

Gradients = dict[str, torch.Tensor]
Update = Callable[[], object]
KWARGS: dict[str, Any] = {"model_config": {"torch_dtype": "float32"}}
MANY = 10**6
AGENT = -1
"""The agent that is compared: the last one."""


def gradients_of(module: torch.nn.Module, prefix: str = "") -> Gradients:
    """Return the gradients of a module's parameters by name."""
    return {prefix + name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


class Given:
    """Sampling and tokenization of an actor-critic trainer, replaced by the token ids of a node: the one whose key is
    its prompt."""

    nodes: dict[str, Any]
    agents: list[Any]
    tokenizers: list[Any]
    key = ""

    def _encode_prompt(self, prompt: str, agent_idx: int | None = None, **ignored: Any) -> dict[str, torch.Tensor]:
        self.key = prompt.removeprefix("joint ")
        node = self.nodes[self.key]
        if agent_idx is None:  # the critic of all agents
            ids = torch.tensor([[token for prompt_ids in node["prompt_ids"] for token in prompt_ids]])
        else:
            ids = torch.tensor([node["prompt_ids"][agent_idx]])
            self.agents[agent_idx].generate = lambda **ignored: self._sequences(node, agent_idx)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def _sequences(self, node: dict[str, Any], agent: int) -> torch.Tensor:
        rows = [[*node["prompt_ids"][agent], *answer] for answer in node["completions"][agent]]
        padding, length = self.tokenizers[agent].pad_token_id, max(map(len, rows))
        return torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows])

    def _build_critic_input(self, prompts: list[str], *ignored: Any, **more: Any) -> str:
        return f"joint {prompts[0]}"


class GivenIAC(Given, IACTrainer):
    """IAC on given rollouts."""


class GivenMAAC(Given, MAACTrainer):
    """MAAC on given rollouts."""


def actor_critic(model: str, case: dict[str, Any]) -> tuple[Update, Callable[[], Gradients]]:
    """Return the update of IAC or MAAC and its gradients."""
    is_iac = case["critic"] == "iac"
    settings = {
        "num_agents": case["agents"],
        "num_turns": case["turns"],
        "num_generations": case["group"],
        "advantage_normalization": case["whitened"],
        "early_termination_threshold": None,
        "external_prompt_passthrough": True,
        "rollout_buffer_size": MANY,
        "agent_devices": "cpu",
        "critic_devices": "cpu",
        "discount": case["discount"],
    }
    separate = not is_iac or case["own"]
    config = IACConfig(**settings, use_separate_critic=separate) if is_iac else MAACConfig(**settings)
    trainer: Any = (GivenIAC if is_iac else GivenMAAC)(
        agent_model=model,
        critic_model=model if separate else None,
        args=config,
        formatters=lambda item, **ignored: item["prompt"],
        reward_func=lambda *answers: trainer.nodes[trainer.key]["rewards"],
        external_transition=lambda **ignored: [trainer.nodes[trainer.key]["child"]] * case["agents"],
        **KWARGS,
    )
    critic: Any = (trainer.critics if separate else trainer.agents)[AGENT]
    critic.value_head.value_projection.load_state_dict(case["head"])
    trainer.nodes = case["nodes"]
    found = [sample for root in case["roots"] for sample in trainer._collect_rollouts({"prompt": root})]
    agent = case["agents"] - 1
    samples = [sample for sample in found if sample.agent_idx == agent]

    def gradients() -> Gradients:
        policy = gradients_of(trainer.agents[AGENT].model)
        head = gradients_of(critic.value_head.value_projection, "critic.head.")
        return policy | head | (gradients_of(critic.model, "critic.body.") if separate else {})

    return lambda: trainer._update(agent, list(samples)), gradients


def reinforce(model: str, case: dict[str, Any]) -> tuple[Update, Callable[[], Gradients]]:
    """Return the update of MAGRPO, or of the centralised actor, and its gradients."""
    trainer: Any = MAGRPOTrainer(
        agent_model=model,
        num_agents=case["agents"],
        reward_func=lambda *answers: [0.0],
        args=MAGRPOConfig(
            num_agents=case["agents"],
            num_turns=1,
            agent_devices="cpu",
            num_generations=case["group"],
            rollout_buffer_size=MANY,
            temperature=1.0,
            advantage_normalization=case["whitened"],
        ),
        **KWARGS,
    )
    agent = case["agents"] - 1
    if case["trainer"] == "centralized_magrpo":
        trainer._compute_loss_with_gradients = lambda *given: joint_policy_gradient_loss(trainer, *given)
    padding = trainer.tokenizers[agent].pad_token_id
    samples = []
    for root in case["roots"]:
        node = case["nodes"][root]
        answers = node["completions"][agent]
        longest = max(map(len, answers))
        data = {
            "prompt_input_ids": torch.tensor([node["prompt_ids"][agent]]),
            "completion_input_ids": [[torch.tensor([*ids, *[padding] * (longest - len(ids))]) for ids in answers]],
        }
        samples.append(SimpleNamespace(completions_data=data, returns=node["rewards"]))
    return (
        lambda: trainer._update_from_samples(agent, list(samples)),
        lambda: gradients_of(trainer.agents[agent]),
    )


def preference_pairs(case: dict[str, Any], trainer: MADPOTrainer) -> list[PreferencePair]:
    """Return the trainer's pairs of all tasks."""
    pairs = []
    for root in case["roots"]:
        node = case["nodes"][root]
        for winner, loser in trainer._select_preference_pair_indices(node["rewards"]):
            tensors = [
                AgentPreferenceTensors(*(torch.tensor(ids) for ids in (prompt, answers[winner], answers[loser])))
                for prompt, answers in zip(node["prompt_ids"], node["completions"], strict=True)
            ]
            pairs.append(PreferencePair([], [], [], tensors, node["rewards"][winner], node["rewards"][loser], 0.0))
    return pairs


def preferences(model: str, case: dict[str, Any]) -> tuple[Update, Callable[[], Gradients]]:
    """Return the update of MADPO, of all agents, and the last agent's gradients."""
    config = MADPOConfig(num_agents=case["agents"], agent_devices="cpu", preference_pairs_per_sample=case["pairs"])
    trainer: Any = MADPOTrainer(
        agent_model=model, num_agents=case["agents"], reward_func=lambda *answers: [0.0], args=config, **KWARGS
    )
    pairs = preference_pairs(case, trainer)
    return (
        lambda: trainer._update_from_preference_batch(pairs),
        lambda: gradients_of(trainer.agents[AGENT]),
    )


def reward_model(model: str, case: dict[str, Any]) -> tuple[Update, Callable[[], Gradients]]:
    """Return the update of MARLHF's reward model on given texts, and its gradients."""
    texts = case["texts"]
    config = MARLHFConfig(
        num_agents=case["agents"],
        agent_devices="cpu",
        reward_model_device="cpu",
        reward_train_batch_size=len(texts),
    )
    trainer: Any = MARLHFTrainer(
        agent_model=model, num_agents=case["agents"], reward_func=lambda *answers: [0.0], args=config, **KWARGS
    )
    trainer.verbose = False
    trainer._init_reward_model()
    trainer._format_joint_text = lambda prompts, completions: completions[0]
    with torch.no_grad():
        trainer.reward_model.reward_head.weight.copy_(case["head"]["weight"])
    pairs = [PreferencePair([], [chosen], [rejected], [], 1.0, 0.0, 0.0) for chosen, rejected in texts]

    def gradients() -> Gradients:
        body = gradients_of(trainer.reward_model.backbone.model, "body.")
        return body | {"head": trainer.reward_model.reward_head.weight.grad.clone()}

    return lambda: trainer._train_reward_model(pairs), gradients


KINDS = {
    "magrpo": reinforce,
    "centralized_magrpo": reinforce,
    "iac": actor_critic,
    "maac": actor_critic,
    "madpo": preferences,
    "marlhf": reward_model,
}


def main() -> None:
    """Answer the cases that are named on stdin."""
    disable_progress_bar()
    model, folder = sys.argv[1], Path(sys.argv[2])
    cases = {case["name"]: case for case in json.loads((folder / "cases.json").read_text(encoding="utf-8"))}
    made: dict[str, Update] = {}
    for line in sys.stdin:
        name = line.strip()
        case = cases[name]
        is_new = name not in made
        if is_new:
            case["head"] = {key: torch.tensor(value) for key, value in case["head"].items()}
            torch.manual_seed(0)
            made[name], gradients = KINDS[case["trainer"]](model, case)
        started = time.perf_counter()
        made[name]()
        seconds = time.perf_counter() - started
        if is_new:
            torch.save(gradients(), folder / f"{case['number']}.pt")
        print(f"seconds {seconds}", flush=True)


if __name__ == "__main__":
    main()
