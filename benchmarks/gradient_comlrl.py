"""CoMLRL's side of `gradient_parity.py`, which starts this as a script in CoMLRL's own environment.

Its MAGRPO trainer plays the given trees (its sampling alone is replaced, by answers that are given), makes its returns,
advantages and losses of them, and the gradients are kept instead of a step. Each case is computed twice: as it is, and
with its known defects made up for (`made_up_for`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from transformers.utils.logging import disable_progress_bar


class AtTemperature(torch.nn.Module):
    """A model whose scores are those that tokens are sampled from."""

    def __init__(self, model: torch.nn.Module, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, **inputs: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.model(**inputs).logits / self.temperature)


class Replay(MAGRPOTrainer):
    """Plays the tree of one task after another; a node's key is the way to it from the root."""

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
    """The node's key, and the joint action that was chosen there."""
    return texts[0].split("|")[0], "-".join(text.split("|")[1] for text in texts)


def make_trainer(model: str, case: dict[str, Any]) -> Replay:
    """Of one case."""

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
            rollout_buffer_size=10**6,  # no update: all groups stay where they are
            temperature=case["temperature"],
            advantage_mode=case["mode"],
            advantage_normalization=case["whitened"],
        ),
    )
    return trainer


def padded(data: dict[str, Any], padding: int) -> dict[str, Any]:
    """Answers as its sampling gives them: filled up to the longest sibling."""
    (answers,) = data["completion_input_ids"]
    longest = max(map(len, answers))
    return data | {
        "completion_input_ids": [
            [torch.nn.functional.pad(ids, (0, longest - len(ids)), value=padding) for ids in answers]
        ]
    }


def made_up_for(data: dict[str, Any]) -> dict[str, Any]:
    """No padding, which it would train on, and a token more: what it leaves out then is none of the answer's."""
    (answers,) = data["completion_input_ids"]
    return data | {"completion_input_ids": [[torch.nn.functional.pad(ids, (0, 1)) for ids in answers]]}


def gradient(trainer: Replay, case: dict[str, Any], defects: bool) -> dict[str, torch.Tensor]:
    """Of the mean loss over all groups of the case's agent, by parameter. Turns are weighted here: 1.4.3 does not."""
    agent = case["agent"]
    policy = trainer.agents[agent]
    policy.zero_grad()
    samples = trainer.rollout_buffers[agent]
    scale = 1.0
    if not defects and case["joint_mode"] == "cross":  # it sums over the joint actions that hold an answer
        scale = 1 / case["group"] ** (case["agents"] - 1)
    model = policy if defects else AtTemperature(policy, case["temperature"])
    for sample in samples:
        data = padded(sample.completions_data, case["padding"]) if defects else made_up_for(sample.completions_data)
        loss = trainer._compute_loss_with_gradients(model, data, [scale * value for value in sample.returns])
        (loss * case["turn_weights"][sample.turn_idx] / len(samples)).backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def main() -> None:
    """Read the cases, write the gradients."""
    disable_progress_bar()
    model, cases, out = sys.argv[1:4]
    found = {}
    for case in json.loads(Path(cases).read_text()):
        trainer = make_trainer(model, case)
        for nodes in case["tasks"]:
            trainer.nodes = nodes
            trainer._train_step_returns({"prompt": ""})
        found[case["name"]] = {
            kind: gradient(trainer, case, kind == "as it is") for kind in ("as it is", "made up for")
        }
    torch.save(found, out)


if __name__ == "__main__":
    main()
