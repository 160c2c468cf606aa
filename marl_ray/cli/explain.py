"""`marl-ray explain KEY`: describe settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser
from marl_ray.cli.train import ALGORITHMS, algorithm


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray explain",
        description="Show the type, default and description of a setting, the settings of a section, or all sections.",
        epilog="examples:\n  marl-ray explain magrpo.num_turns\n  marl-ray explain sandbox\n"
        "  marl-ray explain --schema > marl-ray.schema.json\n\n"
        "Editors complete and check a config with the schema if its first line is\n"
        "  # yaml-language-server: $schema=marl-ray.schema.json",
    )
    parser.add_argument("key", metavar="KEY", nargs="?", default="", help="section.key, or a section")
    algorithm_help = "magrpo or grpo; default: the section in KEY, else magrpo"
    parser.add_argument("--algorithm", type=algorithm, metavar="NAME", help=algorithm_help)
    parser.add_argument("--config", metavar="FILE", help="explain the settings of the plug-ins of this config too")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of a config file")
    return parser.run(_explain, argv)


def _explain(options: argparse.Namespace) -> None:
    from marl_ray.config.descriptions import explain, json_schema
    from marl_ray.config.loader import load_plug_ins_of
    from marl_ray.config.values import read_yaml

    if options.config is not None:
        load_plug_ins_of(read_yaml(Path(options.config)))
    if options.schema:
        print(json.dumps(json_schema(), indent=2))
        return
    chosen = options.algorithm
    if chosen is None:
        section = options.key.partition(".")[0]
        chosen = section if section in ALGORITHMS else ALGORITHMS[0]
    for line in explain(options.key, chosen):
        print(line)
