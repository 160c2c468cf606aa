"""`marl-ray environment`: serve an environment to other programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from marl_ray.cli.parser import Parser, add_run_flags, configure_logging, overrides_of
from marl_ray.cli.request_flags import add_request_flags, request_of

EPILOG = """examples:
  marl-ray environment --config configs/quickstart.yaml --port 8000
  marl-ray environment --config configs/toy_grid.yaml --split eval

docs/how-to/serve_an_environment.md describes the interfaces."""


@dataclass(frozen=True, slots=True)
class EnvironmentRequest:
    """The arguments of `marl-ray environment`."""

    port: Annotated[int, int] = 8000
    """0: a free port"""
    split: str | None = None
    """default: the training split of the config"""
    workers: int | None = None
    """parallel sandboxes; default: one per core"""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray environment",
        description="Serve the environment and the tasks of a config on localhost, through the interface of OpenEnv\n"
        "(reset, step, state). The client answers in the place of the agents; nothing is trained.",
        epilog=EPILOG,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", required=True, help="YAML file")
    add_request_flags(parser, EnvironmentRequest)
    add_run_flags(parser)
    return parser.run(_serve, argv)


def _serve(options: argparse.Namespace) -> None:
    from marl_ray.evaluation.evaluate import evaluation_config
    from marl_ray.plugins.environment_server.serve_environment import serve_environment

    configure_logging(options)
    config = evaluation_config(["base"], options.config, overrides=overrides_of(options))
    serve_environment(config, request_of(EnvironmentRequest, options))
