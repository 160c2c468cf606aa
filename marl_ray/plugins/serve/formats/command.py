"""`marl-ray convert`: results and samples in the formats of other evaluation programs, and configs of CoMLRL."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser
from marl_ray.core.errors import UserError

FORMATS = ("evalplus", "livecodebench", "completions", "lm-eval", "inspect", "parquet", "config")
EPILOG = """formats of an evaluation's folder (marl-ray eval --episodes):
  evalplus       samples.jsonl for evalplus.evaluate: the joint programs of the last turn
  livecodebench  JSON for LiveCodeBench's custom evaluator
  completions    the file of marl-ray score, with one text per agent
  lm-eval        results JSON of lm-eval
  inspect        log of inspect
  parquet        one row per agent, joint action and turn; also of a run folder

formats of a file:
  completions    from EvalPlus's samples.jsonl or LiveCodeBench's JSON, with --dataset and --type
  config         from a YAML file of CoMLRL 1.4.3

examples:
  marl-ray convert evaluations/one --to evalplus --output samples.jsonl
  marl-ray convert runs/one --to parquet --output episodes.parquet
  marl-ray convert samples.jsonl --to completions --dataset humaneval.jsonl --type humaneval --output mine.jsonl
  marl-ray convert comlrl.yaml --to config --output mine.yaml

See docs/how-to/evaluate.md and docs/reference/comlrl.md."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray convert",
        description="Write an evaluation in the format of another program, or read its samples or CoMLRL's config.",
        epilog=EPILOG,
    )
    parser.add_argument("source", type=Path, metavar="SOURCE", help="folder of marl-ray eval, run folder, or a file")
    parser.add_argument("--to", required=True, choices=FORMATS, metavar="FORMAT", help=f"one of {', '.join(FORMATS)}")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="new file")
    parser.add_argument("--model", metavar="LABEL", help="model of the evaluation; default: the only one")
    parser.add_argument("--dataset", metavar="FILE", help="tasks of a samples file: a file, hub id or bundled name")
    parser.add_argument("--split", default="test", metavar="SPLIT", help="split of --dataset; default: test")
    parser.add_argument("--type", metavar="TYPE", help="dataset.type of --dataset; default: inferred from its name")
    return parser.run(_convert, argv)


def _convert(options: argparse.Namespace) -> None:
    from marl_ray.core.files import expand_home, write_atomically
    from marl_ray.plugins.serve.formats.code_samples import WRITERS
    from marl_ray.plugins.serve.formats.episode_table import write_episode_table
    from marl_ray.plugins.serve.formats.evaluation_samples import read_finished_evaluation
    from marl_ray.plugins.serve.formats.result_logs import inspect_log, lm_eval_results, to_json

    target = expand_home(options.output).absolute()
    if target.exists():
        raise UserError(f"{target} exists: give another --output")
    if not target.parent.is_dir():
        raise UserError(f"folder {target.parent} does not exist: create it, or give another --output")
    if options.to == "parquet":
        print(f"{write_episode_table(options.source, target)} rows in {target}")
        return
    if options.to == "config":
        text = _config(options.source)
    elif expand_home(options.source).is_file():
        text = _completions(options)
    else:
        evaluation = read_finished_evaluation(options.source)
        samples = evaluation.of_model(options.model)
        label = samples[0].model
        if options.to == "lm-eval":
            text = to_json(lm_eval_results(evaluation, label))
        elif options.to == "inspect":
            text = to_json(inspect_log(evaluation, label, samples))
        else:
            text = WRITERS[options.to](samples)
    write_atomically(target, text.encode())
    print(f"{options.to} in {target}")


def _config(source: Path) -> str:
    """Return the text of a config from one of another program, and print a note per setting that was left out."""
    import yaml

    from marl_ray.config import from_tree
    from marl_ray.config.dialects import convert_file
    from marl_ray.config.values import read_yaml

    given = read_yaml(source)
    algorithm = "grpo" if "grpo" in given else "magrpo"
    tree, notes = convert_file(given, algorithm)
    try:
        from_tree(tree, algorithm, note=notes.append)
    except UserError as error:
        raise UserError(f"the config of marl_ray made from {source} is not valid: {error}") from None
    print("\n".join(notes), end="\n" if notes else "")
    return yaml.safe_dump(tree, sort_keys=False)


def _completions(options: argparse.Namespace) -> str:
    from marl_ray.data import infer_type
    from marl_ray.evaluation.scoring import tasks_by_id
    from marl_ray.plugins.serve.formats.code_samples import read_programs

    if options.to != "completions" or options.dataset is None:
        raise UserError("a samples file becomes --to completions, and needs --dataset FILE")
    tasks = tasks_by_id(options.dataset, options.split, options.type or infer_type(options.dataset))
    rows = read_programs(options.source, tasks)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
