"""`marl-ray plan`: check a config and estimate memory, placement and time without starting anything."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from marl_ray.cli.parser import Parser
from marl_ray.cli.train import EXAMPLES, add_algorithm, add_config_flags, print_dry_run, read_config
from marl_ray.core.errors import UserError

if TYPE_CHECKING:
    from marl_ray.cluster.hardware import NodeSpec


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code, 1 if the run does not fit."""
    parser = Parser(
        prog="marl-ray plan",
        description="Check a config without starting anything. Prints the resolved config on standard output, and on\n"
        "standard error the number of samples and updates, the memory and placement of each actor, and an\n"
        "estimate of the time per step.",
        epilog=EXAMPLES.format(prog="marl-ray plan", section="magrpo"),
    )
    add_algorithm(parser)
    nodes_help = "cluster to plan for: NODESxGPUSxTYPE such as 2x8xH100-80GB, or a YAML file; default: the cluster at "
    parser.add_argument("--cluster", metavar="NODES", help=nodes_help + "RAY_ADDRESS, or this machine")
    add_config_flags(parser)
    return parser.run(_plan, argv)


def _plan(options: argparse.Namespace) -> None:
    from marl_ray.cluster.capacity_plan import plan_capacity
    from marl_ray.cluster.hardware import parse_cluster
    from marl_ray.cluster.residency import decide_residency, share_gpus
    from marl_ray.launch.capacity import model_infos
    from marl_ray.plugins.planner.capacity_report import report_lines, shortage_message

    config, saved = read_config(options)
    nodes = []
    if options.cluster:
        nodes = parse_cluster(options.cluster)  # before the checks, which take longer
    inputs = print_dry_run(config, saved)
    if inputs is None:
        return
    nodes = nodes or _available_nodes()
    models = model_infos(config, inputs)
    config, reason = decide_residency(config, models, nodes)
    if reason:
        sys.stderr.write(f"{reason}\n")
    config = replace(config, agents=share_gpus(config.agents, config.lora, config.resources, nodes))
    capacity = plan_capacity(config, models, nodes)
    # Standard output has the YAML alone, as in a dry run.
    for line in report_lines(config, models, capacity):
        sys.stderr.write(f"{line}\n")
    shortage = shortage_message(config, models, capacity)
    if shortage:
        raise UserError(shortage)


def _available_nodes() -> list[NodeSpec]:
    """Return the nodes of the cluster at RAY_ADDRESS, or this machine."""
    from marl_ray.cluster.hardware import cluster_nodes, local_node
    from marl_ray.cluster.ray_connection import cluster_address, connect, disconnect

    if not cluster_address():
        return [local_node()]
    connect(verbose=False)
    try:
        return cluster_nodes()
    finally:
        disconnect()
