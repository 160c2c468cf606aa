"""Results of an evaluation for the viewers of other programs: lm-eval's results JSON and inspect's log."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import marl_ray
from marl_ray.plugins.serve.formats.evaluation_samples import EvaluationSample, FinishedEvaluation

Z95 = 1.959963984540054
"""Half the width of a 95 % interval of a normal distribution, in standard errors."""


def lm_eval_results(evaluation: FinishedEvaluation, model: str) -> dict[str, Any]:
    """Return the results of a model in the format of lm-eval (results_*.json). Standard errors are a quarter of the
    width of the bootstrap interval, approximately, as if its distribution were normal."""
    numbers = evaluation.content["models"][model]
    task = evaluation.config.dataset.type
    values: dict[str, Any] = {"alias": task}
    for name, number in numbers.items():
        values[f"{name},none"] = number["mean"]
        stderr: float | str = "N/A"
        if number["low"] is not None:
            stderr = (number["high"] - number["low"]) / (2 * Z95)
        values[f"{name}_stderr,none"] = stderr
    tasks = evaluation.content["tasks"]
    agents = [agent["model"] for agent in evaluation.content["weights"][model]]
    return {
        "results": {task: values},
        "group_subtasks": {task: []},
        "configs": {task: {"task": task, "dataset_path": evaluation.config.dataset.name}},
        "versions": {task: marl_ray.__version__},
        "n-shot": {task: 0},
        "higher_is_better": {task: dict.fromkeys(numbers, True)},
        "n-samples": {task: {"original": tasks, "effective": tasks}},
        "config": {"model": "marl_ray", "model_args": f"agents={','.join(agents)}"},
        "model_name": model,
        "date": _modified(evaluation),
    }


def inspect_log(evaluation: FinishedEvaluation, model: str, samples: Sequence[EvaluationSample]) -> dict[str, Any]:
    """Return the log of a model in inspect's JSON format, with one sample per episode. Inspect counts the episodes of
    a task as epochs."""
    created = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(_modified(evaluation)))
    config = evaluation.config
    ids = list(dict.fromkeys(sample.task.id for sample in samples))
    metrics = {}
    for name, value in evaluation.content["models"][model].items():
        if not math.isnan(value["mean"]):  # JSON has no NaN
            metrics[name] = {"name": name, "value": value["mean"]}
    spec = {
        "created": created,
        "task": f"marl_ray/{config.environment}",
        "model": f"marl_ray/{model}",
        "dataset": {"name": config.dataset.name, "samples": len(ids), "sample_ids": ids},
        "config": {"epochs": evaluation.content["samples"]},
        "packages": {"marl_ray": marl_ray.__version__},
    }
    score = {"name": "joint_program", "scorer": "joint_program", "metrics": metrics}
    total = {"total_samples": len(samples), "completed_samples": len(samples), "scores": [score]}
    return {
        "version": 2,
        "status": "success",
        "eval": spec,
        "results": total,
        "stats": {"started_at": created, "completed_at": created},
        "samples": [_inspect_sample(sample, model) for sample in samples],
    }


def _inspect_sample(sample: EvaluationSample, model: str) -> dict[str, Any]:
    value: Any = sample.reward
    if sample.passed is not None:
        value = "C" if sample.passed else "I"  # inspect's marks for correct and incorrect
    parts = []
    for agent, prompt in enumerate(sample.prompts):
        parts.append({"agent": agent, "prompt": prompt, "response": sample.responses[agent]})
    message = {"role": "assistant", "content": sample.program, "source": "generate"}
    choices = [{"message": message, "stop_reason": "stop"}]
    return {
        "id": sample.task.id,
        "epoch": sample.number + 1,
        "input": sample.task.prompt,
        "target": "",
        "messages": [{"role": "user", "content": sample.task.prompt}, message],
        "output": {"model": f"marl_ray/{model}", "choices": choices},
        "scores": {"joint_program": {"value": value, "answer": sample.program, "metadata": {"reward": sample.reward}}},
        "metadata": {"agents": parts},
    }


def _modified(evaluation: FinishedEvaluation) -> float:
    return os.path.getmtime(evaluation.folder / "evaluation.json")


def to_json(content: Mapping[str, Any]) -> str:
    """Return JSON text with the file's final line break."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
