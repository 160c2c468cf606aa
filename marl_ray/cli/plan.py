"""`marl-ray plan ALGORITHM`: all that can be said and checked before anything is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marl_ray.cli.config_flags import EXAMPLES, add_settings, algorithm, read
from marl_ray.cli.parser import Parser, exit_code_of

if TYPE_CHECKING:
    from marl_ray.cluster.hardware import NodeSpec
    from marl_ray.cluster.memory_estimate import ModelInfo
    from marl_ray.config import Config
    from marl_ray.storage.resume import SavedRun
    from marl_ray.trainer.context import RunInputs

PROMPTS = 32
"""Tasks whose prompts are counted."""


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code: 1 where the run does not fit."""
    parser = Parser(
        prog="marl-ray plan",
        description="Check a config and start nothing. The resolved config goes to standard output; to standard error\n"
        "its arithmetic, the memory of each actor, where it goes, and how long a step may take.",
        epilog=EXAMPLES.format(prog="marl-ray plan magrpo", section="magrpo"),
    )
    parser.add_argument("algorithm", type=algorithm, help="magrpo, or grpo for a single agent")
    parser.add_argument(
        "--cluster",
        metavar="NODES",
        help="what to plan for: NODESxGPUSxTYPE, as 2x8xH100-80GB, or a YAML file; without it the cluster that "
        "RAY_ADDRESS names, or this machine",
    )
    add_settings(parser)
    options = parser.parse_args(argv)
    return exit_code_of(lambda: _plan(*read(options.algorithm, options), options.cluster))


def show(config: Config, saved: SavedRun | None) -> RunInputs | None:
    """Check and print. None where the run is done. Raises UserError."""
    from marl_ray.cluster.placement_plan import describe_demands
    from marl_ray.config import to_yaml
    from marl_ray.config.budget import describe_budget
    from marl_ray.launch.run_checks import check
    from marl_ray.storage.resume import RunIsDone

    try:
        problem = check(config, saved, dry=True)
    except RunIsDone as done:
        if config.output.resume == "never":
            raise
        sys.stderr.write(f"{done}\n")
        return None
    facts = [describe_budget(config, len(problem.train_tasks) or None), *problem.prompt_notes, describe_demands(config)]
    sys.stdout.write(to_yaml(config))
    sys.stderr.write("\n".join(facts) + "\n")
    return problem


def _plan(config: Config, saved: SavedRun | None, cluster: str | None) -> None:
    """Also say what it takes. Raises UserError for what does not fit."""
    from marl_ray.cluster.capacity_plan import plan_capacity
    from marl_ray.cluster.capacity_report import report_lines, shortage_message
    from marl_ray.cluster.hardware import parse_cluster
    from marl_ray.core.errors import UserError

    machines = parse_cluster(cluster) if cluster else None
    problem = show(config, saved)
    if problem is None:
        return
    machines = machines or _machines()
    models = _models(config, problem)
    found = plan_capacity(config, models, machines)
    for line in report_lines(config, models, found):
        sys.stderr.write(line + "\n")
    if short := shortage_message(config, models, found):
        raise UserError(short)


def _machines() -> list[NodeSpec]:
    """Of the cluster that RAY_ADDRESS names, which is asked and left again, or this one."""
    from marl_ray.cluster.hardware import cluster_nodes, local_node
    from marl_ray.cluster.ray_connection import cluster_address, connect, disconnect

    if not cluster_address():
        return [local_node()]
    connect(verbose=False)
    try:
        return cluster_nodes()
    finally:
        disconnect()


def _models(config: Config, problem: RunInputs) -> dict[str, ModelInfo]:
    """By name; those that cannot be read are said and left out."""
    from marl_ray.cluster.memory_estimate import ModelInfo, read_model_config
    from marl_ray.core.errors import UserError

    trust = config.model.model_kwargs.trust_remote_code
    models = {}
    for name in dict.fromkeys(agent.name for agent in config.agents):
        try:
            settings = read_model_config(name, trust, fetch=True)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            continue
        models[name] = ModelInfo(settings, trust, **_prompt(config, problem, name))
    return models


def _prompt(config: Config, problem: RunInputs, name: str) -> dict[str, int]:
    """Tokens of a typical first prompt, where tasks and tokenizer are here."""
    from statistics import median

    from marl_ray.models.names import resolve_model
    from marl_ray.models.tokenization import load_tokenizer

    place = resolve_model(name, fetch=False)
    if not problem.train_tasks or not Path(place).is_dir():
        return {}
    tokenizer = load_tokenizer(place, config.model)
    texts = [text for task in problem.train_tasks[:PROMPTS] for text in problem.environment.first_prompts(task)]
    return {"prompt": round(median(len(ids) for ids in tokenizer(texts).input_ids))}
