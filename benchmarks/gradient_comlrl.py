"""The CoMLRL side of `gradient_parity.py`, started as a script in CoMLRL's own environment.

Its MAGRPO trainer runs the given trees, with its sampling replaced by the given completions, and computes returns,
advantages and losses; its MADPO trainer selects pairs of the given joint actions by their rewards and computes its
loss. Gradients are kept instead of an optimizer step. Each case is computed twice: unchanged, and with known errors
corrected (`corrected`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from comlrl.trainers.preference import MADPOConfig, MADPOTrainer
from comlrl.trainers.preference.madpo import AgentPreferenceTensors, PreferencePair
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from transformers.utils.logging import disable_progress_bar


class AtTemperature(torch.nn.Module):
    """A model whose logits are divided by the sampling temperature."""

    def __init__(self, model: torch.nn.Module, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, **inputs: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.model(**inputs).logits / self.temperature)


class Replay(MAGRPOTrainer):
    """A trainer that runs the tree of one task after another; a node's key is its path from the root."""

    nodes: dict[str, dict[str, Any]]

    def _generate_completions_with_external_prompts(
        self, agent: Any, batch_items: Any, agent_idx: int = 0, external_prompts: Any = None, **ignored: Any
    ) -> dict[str, Any]:
        key = external_prompts or "root"
        node = self.nodes[key]
        answers = node["completions"][agent_idx]
        return {
            "prompts": [key],
            "batch_items": batch_items,
            "completions": [[f"{key}|{number}" for number in range(len(answers))]],
            "prompt_input_ids": torch.tensor([node["prompt_ids"][agent_idx]]),
            "completion_input_ids": [[torch.tensor(ids) for ids in answers]],
            "reference_kls": [],
        }


def chosen(texts: list[str]) -> tuple[str, str]:
    """Return the node's key and the chosen joint action."""
    return texts[0].split("|")[0], "-".join(text.split("|")[1] for text in texts)


def make_trainer(model: str, case: dict[str, Any]) -> Replay:
    """Return the trainer of one case."""

    def reward(*answers: list[str]) -> list[float]:
        key, action = chosen([texts[0] for texts in answers])
        return [trainer.nodes[key]["rewards"][action]]

    def transition(agent_completions: list[str], **ignored: Any) -> list[str]:
        key, action = chosen(list(agent_completions))
        return [f"{key}/{action}"] * case["agents"]

    trainer = Replay(
        agent_model=model,
        num_agents=case["agents"],
        model_config={"torch_dtype": "float32"},
        reward_func=reward,
        external_transition=transition,
        args=MAGRPOConfig(
            num_agents=case["agents"],
            agent_devices="cpu",
            num_generations=case["group"],
            num_turns=case["turns"],
            joint_mode=case["joint_mode"],
            early_termination_threshold=None,
            rollout_buffer_size=10**6,  # no update: all groups stay in the buffer
            temperature=case["temperature"],
            advantage_mode=case["mode"],
            advantage_normalization=case["whitened"],
        ),
    )
    return trainer


def padded(data: dict[str, Any], padding: int) -> dict[str, Any]:
    """Return completions padded to the longest sibling, as CoMLRL's sampling does."""
    (answers,) = data["completion_input_ids"]
    longest = max(map(len, answers))
    return data | {
        "completion_input_ids": [
            [torch.nn.functional.pad(ids, (0, longest - len(ids)), value=padding) for ids in answers]
        ]
    }


def corrected(data: dict[str, Any]) -> dict[str, Any]:
    """Return completions without padding and with one more token, which CoMLRL leaves out instead of the last one."""
    (answers,) = data["completion_input_ids"]
    return data | {"completion_input_ids": [[torch.nn.functional.pad(ids, (0, 1)) for ids in answers]]}


def gradient(trainer: Replay, case: dict[str, Any], unchanged: bool) -> dict[str, torch.Tensor]:
    """Return the gradient of the mean loss over all groups of the case's agent. Turn weights are applied here, because
    CoMLRL 1.4.3 does not apply them."""
    agent = case["agent"]
    policy = trainer.agents[agent]
    policy.zero_grad()
    samples = trainer.rollout_buffers[agent]
    scale = 1.0
    if not unchanged and case["joint_mode"] == "cross":  # CoMLRL sums over the joint actions of a completion
        scale = 1 / case["group"] ** (case["agents"] - 1)
    model = policy if unchanged else AtTemperature(policy, case["temperature"])
    for sample in samples:
        data = padded(sample.completions_data, case["padding"]) if unchanged else corrected(sample.completions_data)
        loss = trainer._compute_loss_with_gradients(model, data, [scale * value for value in sample.returns])
        (loss * case["turn_weights"][sample.turn_idx] / len(samples)).backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def make_preference_trainer(model: str, case: dict[str, Any]) -> MADPOTrainer:
    """Return the trainer of one case of preference learning."""
    return MADPOTrainer(
        agent_model=model,
        num_agents=case["agents"],
        model_config={"torch_dtype": "float32"},
        reward_func=lambda *answers: [0.0],
        args=MADPOConfig(
            num_agents=case["agents"],
            agent_devices="cpu",
            preference_pairs_per_sample=case["pairs"],
            dpo_beta=case["beta"],
        ),
    )


def preference_pairs(trainer: MADPOTrainer, nodes: dict[str, Any], unchanged: bool) -> list[PreferencePair]:
    """Return the trainer's pairs of one task. Corrected completions have one more token, because the trainer leaves out
    the last one."""
    root = nodes["root"]
    rewards = list(root["rewards"].values())

    def ids(agent: int, index: int) -> torch.Tensor:
        return torch.nn.functional.pad(torch.tensor(root["completions"][agent][index]), (0, 0 if unchanged else 1))

    pairs = []
    for winner, loser in trainer._select_preference_pair_indices(rewards):
        tensors = [
            AgentPreferenceTensors(torch.tensor(prompt), ids(agent, winner), ids(agent, loser))
            for agent, prompt in enumerate(root["prompt_ids"])
        ]
        pairs.append(PreferencePair([], [], [], tensors, rewards[winner], rewards[loser], 0.0))
    return pairs


def preference_gradient(trainer: MADPOTrainer, case: dict[str, Any], unchanged: bool) -> dict[str, torch.Tensor]:
    """Return the gradient of the trainer's loss on the pairs of all tasks. The corrected trainer does not cut sampled
    completions at the first token that is also the padding."""
    if not unchanged:
        trainer._trim_completion_tokens = lambda tokens, padding: tokens
    policy = trainer.agents[case["agent"]]
    policy.zero_grad()
    batch = [pair for nodes in case["tasks"] for pair in preference_pairs(trainer, nodes, unchanged)]
    trainer._agent_preference_loss(case["agent"], batch, trainer._detached_agent_deltas(batch)).backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def main() -> None:
    """Read the cases and write the gradients."""
    disable_progress_bar()
    model, cases, out = sys.argv[1:4]
    gradients = {}
    for case in json.loads(Path(cases).read_text(encoding="utf-8")):
        if case["pairs"]:
            preferences = make_preference_trainer(model, case)
            gradients[case["name"]] = {
                kind: preference_gradient(preferences, case, kind == "unchanged") for kind in ("unchanged", "corrected")
            }
            continue
        trainer = make_trainer(model, case)
        for nodes in case["tasks"]:
            trainer.nodes = nodes
            trainer._train_step_returns({"prompt": ""})
        gradients[case["name"]] = {
            kind: gradient(trainer, case, kind == "unchanged") for kind in ("unchanged", "corrected")
        }
    torch.save(gradients, out)


if __name__ == "__main__":
    main()
