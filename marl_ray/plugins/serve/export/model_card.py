"""Model card of an exported team: README.md with the metadata of the Hugging Face hub."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from marl_ray.config import Config
from marl_ray.core.errors import UserError
from marl_ray.models.names import is_hub_id

CURVE = "curve.png"
SHOWN = ("return", "reward_mean", "pass@", "all_passed")
"""Metrics in the card: names that start or whose last part starts with one of these."""
MAX_CARD_CONFIG_LINES = 200


@dataclass(frozen=True, slots=True)
class CardMetric:
    """A metric of the card: mean, and 95 % interval over `tasks` tasks if an evaluation measured it."""

    name: str
    mean: float
    low: float | None = None
    high: float | None = None
    tasks: int | None = None

    @property
    def interval(self) -> str:
        """The interval as text, empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"[{self.low:.3f}, {self.high:.3f}]"


def evaluation_measurements(content: Mapping[str, Any], label: str) -> list[CardMetric]:
    """Return the metrics of a model in the content of evaluation.json."""
    measured = []
    for name, number in content["models"][label].items():
        if _is_shown(name):
            measured.append(CardMetric(name, number["mean"], number["low"], number["high"], number["tasks"]))
    return measured


def training_measurements(row: Mapping[str, Any]) -> list[CardMetric]:
    """Return the metrics of an evaluation row of metrics.jsonl, which has no intervals."""
    measured = []
    for key, value in row.items():
        name = key.removeprefix("eval/")
        if name != key and value is not None and _is_shown(name):
            measured.append(CardMetric(name, value))
    return measured


def _is_shown(name: str) -> bool:
    return name.rpartition("/")[2].startswith(SHOWN)


def model_card(
    name: str, team: Mapping[str, Any], config: Config, measured: list[CardMetric], licence: str, curve: bool
) -> str:
    """Return the text of README.md. Raises UserError if huggingface_hub rejects the metadata."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    dataset = config.dataset.name.partition(":")[0]
    on_hub = is_hub_id(dataset) and "/" in dataset
    # The hub rejects names of folders and of bundled models.
    bases = []
    for agent in team["agents"]:
        base = agent["base_model"]
        if "/" in base and is_hub_id(base) and base not in bases:
            bases.append(base)
    results = []
    for measurement in measured:
        result = EvalResult(
            task_type="text-generation",
            dataset_type=dataset if on_hub else config.dataset.type,
            dataset_name=config.dataset.name,
            dataset_split=config.dataset.eval_split,
            metric_type=measurement.name.rpartition("/")[2],
            metric_name=f"{measurement.name} {measurement.interval}".strip(),
            metric_value=round(measurement.mean, 6),
        )
        results.append(result)
    try:
        data = ModelCardData(
            license=licence,
            library_name="transformers",
            pipeline_tag="text-generation",
            tags=["marl_ray", "multi-agent", "reinforcement-learning", config.algorithm],
            base_model=bases or None,
            datasets=[dataset] if on_hub else None,
            model_name=name,
            eval_results=results or None,
        )
        text = f"---\n{data.to_yaml()}\n---\n{_body(name, team, config, measured, curve)}"
        ModelCard(text)
    except (ValueError, TypeError) as error:
        raise UserError(f"the model card is not valid: {error}") from None
    return text


def _body(name: str, team: Mapping[str, Any], config: Config, measured: list[CardMetric], curve: bool) -> str:
    agents = team["agents"]
    rows = []
    for agent in agents:
        sampling = agent["sampling"]
        models = f"`{agent['folder']}` | `{agent['base_model']}`"
        limits = f"{sampling['temperature']:g} | {sampling['max_new_tokens']}"
        rows.append(f"| `{agent['name']}` | {agent['role'] or ''} | {models} | {limits} |")
    steps = ""
    if team["trained_steps"] is not None:
        steps = f" for {team['trained_steps']} steps"
    estimators = ", ".join(dict.fromkeys(agent.estimator for agent in config.agents))
    text = f"""
        # {name}

        A team of {len(agents)} language models for code tasks, trained together by reinforcement learning with
        [marl_ray](https://pypi.org/project/marl-ray/) {team["marl_ray"]}{steps}. The agents answer in
        {team["turns"]} turn(s); their answers form one program (environment `{config.environment}`), and the feedback
        between turns is `{config.external.mode}`.

        | agent | role | folder | base model | temperature | max. new tokens |
        |---|---|---|---|---|---|
        """
    lines = [textwrap.dedent(text).strip("\n"), *rows, ""]
    lines += ["## Use", "", "Ask the whole team, with an OpenAI-compatible server:", "", "```", "marl-ray serve ."]
    lines += ["marl-ray eval --model .", "```", "", "Load one agent with transformers alone:", "", "```python"]
    lines += ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    first = agents[0]["folder"]
    lines += [f'model = AutoModelForCausalLM.from_pretrained("{first}")']
    lines += [f'tokenizer = AutoTokenizer.from_pretrained("{first}")', "```", ""]
    lines += ["`team.json` has roles, prompts, sampling and turns for other programs.", ""]
    lines += ["## Training", "", f"- Algorithm: {config.algorithm} (estimator {estimators})"]
    lines += [f"- Data: `{config.dataset.name}`, split `{config.dataset.train_split}`"]
    lines += [f"- Seed: {config.seed}", ""]
    if measured:
        lines += ["## Evaluation", "", f"Tasks: `{config.dataset.name}`, split `{config.dataset.eval_split}`.", ""]
        lines += ["| metric | mean | 95 % interval over tasks |", "|---|---|---|"]
        lines += [f"| {m.name} | {m.mean:.3f} | {m.interval or 'not measured'} |" for m in measured]
        lines += [""]
    if curve:
        lines += [f"![Reward over joint samples]({CURVE})", ""]
    config_lines = yaml.safe_dump(team["config"], sort_keys=False).splitlines()
    shown = config_lines[:MAX_CARD_CONFIG_LINES]
    lines += [
        "## Config",
        "",
        "<details><summary>config.yaml</summary>",
        "",
        "```yaml",
        *shown,
        "```",
        "",
        "</details>",
    ]
    return "\n".join(lines) + "\n"
