"""`marl-ray environment`: serve an environment to other programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, add_overrides, add_verbosity, configure_logging, positive

EPILOG = """examples:
  marl-ray environment --config configs/quickstart.yaml --port 8000
  marl-ray environment --config configs/toy_grid.yaml --split eval

docs/how-to/serve_an_environment.md describes the interfaces."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray environment",
        description="Serve the environment and the tasks of a config on localhost, through the interface of OpenEnv\n"
        "(reset, step, state). The client answers in the place of the agents; nothing is trained.",
        epilog=EPILOG,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", required=True, help="YAML file")
    parser.add_argument("--split", metavar="SPLIT", help="default: the training split of the config")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="0: a free port; default: 8000")
    parser.add_argument("--workers", type=positive, metavar="N", help="parallel sandboxes; default: one per core")
    add_overrides(parser)
    add_verbosity(parser)
    return parser.run(_serve, argv)


def _serve(options: argparse.Namespace) -> None:
    from marl_ray.config import parse_overrides
    from marl_ray.evaluation.evaluate import evaluation_config
    from marl_ray.plugins.environment_server.serve_environment import EnvironmentRequest, serve_environment

    configure_logging(options)
    config = evaluation_config(["base"], options.config, overrides=parse_overrides(options.override))
    serve_environment(config, EnvironmentRequest(options.port, options.split, options.workers))
