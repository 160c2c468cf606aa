"""`marl-ray serve`: serve a trained team over HTTP."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, add_run_flags, configure_logging, overrides_of, positive

EPILOG = """examples:
  marl-ray serve runs/one
  marl-ray serve exports/one --port 8001 --override magrpo.eval_temperature=0
  marl-ray serve exports/one --host 0.0.0.0 --api-key-file key.txt

endpoints:
  /v1/chat/completions, /v1/completions, /v1/models   models team, agent_0, agent_1, ...
  /mcp                                                the MCP tool ask_team
  /                                                   a page to ask the team
  /health                                             200 while the server runs

See docs/how-to/serve.md."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray serve",
        description="Serve a trained team with an OpenAI-compatible API. The model team plays the turns that the team\n"
        "was trained with, and answers with the joint program. Listens on this machine only, by default.",
        epilog=EPILOG,
    )
    parser.add_argument("model", metavar="RUN", help="folder of a run, of a checkpoint or of an export")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1")
    parser.add_argument("--port", type=port, default=8000, metavar="N", help="0: any free port; default: 8000")
    key_help = "file with the API key that requests need; required for other hosts than this machine"
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help=key_help)
    parser.add_argument("--max-requests", type=positive, default=256, metavar="N", help="in progress; default: 256")
    parser.add_argument("--max-body-kb", type=positive, default=1024, metavar="N", help="per request; default: 1024")
    parser.add_argument("--timeout", type=positive, default=300, metavar="S", help="per answer; default: 300")
    parser.add_argument("--drain", type=positive, default=60, metavar="S", help="for answers at a stop; default: 60")
    add_run_flags(parser)
    return parser.run(_serve, argv)


def port(text: str) -> int:
    """Convert an argument to a TCP port, or 0."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def _serve(options: argparse.Namespace) -> None:
    from marl_ray.evaluation.model_sources import run_folder_of
    from marl_ray.http.request_guard import ServerLimits
    from marl_ray.plugins.serve.serve_team import ServeRequest, serve_team
    from marl_ray.storage.resume import SavedRun

    configure_logging(options)
    limits = ServerLimits(
        body_bytes=options.max_body_kb << 10,
        requests=options.max_requests,
        answer_s=float(options.timeout),
        drain_s=float(options.drain),
    )
    saved = SavedRun.read(run_folder_of(Path(options.model)))
    config = saved.config({f"{saved.algorithm}.eval_num_generations": 1, **overrides_of(options)})
    request = ServeRequest(options.model, options.host, options.port, options.api_key_file, limits)
    serve_team(config, request, lambda address: print(f"serving {options.model} at {address}", flush=True))
