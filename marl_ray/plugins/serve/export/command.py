"""`marl-ray export`: write a trained team as a folder for transformers, the hub and other programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, add_verbosity, configure_logging
from marl_ray.cli.request_flags import add_request_flags, request_of
from marl_ray.plugins.serve.export.request import ExportRequest

EPILOG = """examples:
  marl-ray export runs/one --to exports/one
  marl-ray export runs/one --to exports/one --evaluation evaluations/one --license apache-2.0
  marl-ray export runs/one/checkpoints/step_000024 --to exports/step_24 --merge
  marl-ray export runs/one --to exports/one --push owner/one

`marl-ray eval --model` and `marl-ray serve` accept the folder. See docs/how-to/export.md."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray export",
        description="Write the trained models of a run or checkpoint, with tokenizers, generation configs, team.json\n"
        "and a model card. transformers loads the folder of each agent.",
        epilog=EPILOG,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a checkpoint")
    add_request_flags(parser, ExportRequest)
    parser.add_argument("--push", metavar="REPO", help="upload to this repository of the Hugging Face hub")
    parser.add_argument("--public", action="store_true", help="make a new repository public; default: private")
    add_verbosity(parser)
    return parser.run(_export, argv)


def _export(options: argparse.Namespace) -> None:
    from marl_ray.plugins.serve.export import hub
    from marl_ray.plugins.serve.export.export_run import export_run

    configure_logging(options)
    if options.push:
        hub.check_repository(options.push)
    for line in export_run(request_of(ExportRequest, options)):
        print(line)
    if options.push:
        print(hub.push(options.to, options.push, options.public))
