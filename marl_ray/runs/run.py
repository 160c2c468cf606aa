"""One run from its config to its exit code: every check that can be made before anything starts, the run folder,
Ray, the loop, and the summary."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from marl_ray.config.arithmetic import arithmetic, describe
from marl_ray.core.words import counted
from marl_ray.runs.check import check, check_run_dir, dataset_type
from marl_ray.runs.checkpoints import Checkpoints
from marl_ray.cluster.plan import PlacementError, make_plan
from marl_ray.config import Config, ConfigError, load, to_yaml
from marl_ray.config.schema import ALGORITHMS
from marl_ray.sandbox import SandboxUnavailable
from marl_ray.telemetry.console import say
from marl_ray.telemetry.record import CONFIG_FILE
from marl_ray.trainer import Outcome, Trainer

RAY_PACKAGE = "_ray_pkg_"
"""In the path of the copy of --working-dir that a Ray job runs in."""


class RunError(RuntimeError):
    """A run that cannot start or has failed; the text is one line."""


def train(config: Config, resume: Path | None) -> None:
    """Train, blocking. Raises RunError, ConfigError or DataError with one line, KeyboardInterrupt when stopped."""
    begun = time.monotonic()
    try:
        problem = check(config)
        check_local_gpus(config)
        if resume is not None:
            check_resume(config, resume, len(problem.train_tasks))
        run_dir = new_run_dir(config) if resume is None else resume.expanduser().absolute()
        trainer = Trainer(config, problem, run_dir, resume is not None)
        if resume is None:
            (run_dir / CONFIG_FILE).write_text(to_yaml(config))
    except (ValueError, OSError) as error:
        raise RunError(" ".join(str(error).split())) from None
    if config.model.top_p < 1 or config.model.top_k:
        say(
            "note: top_p or top_k cuts the sampler's distribution but not the learner's, so gradients are slightly "
            "off-policy; agent_*/logprob_gap shows by how much"
        )
    if RAY_PACKAGE in str(run_dir):
        say(f"warning: results go to {run_dir}, which Ray deletes with the job: set output.base_dir to a shared folder")
    for line in describe(config, len(problem.train_tasks)).splitlines():
        say(line)
    say(f"results go to {run_dir}")
    try:
        outcome = _on_ray(config, trainer)
    except KeyboardInterrupt:
        if trainer.checkpoints.all():
            saved = trainer.checkpoints.latest()[1].step
            say(f"stopped at step {trainer.step}; --resume {run_dir} goes on from the last checkpoint, step {saved}")
        else:
            say(f"stopped at step {trainer.step}, before the first checkpoint")
        raise
    finally:
        _remove_if_empty(run_dir)
    for line in summary(config, trainer, outcome, time.monotonic() - begun):
        say(line)


def check_local_gpus(config: Config) -> None:
    """Without a cluster's address the run is on this machine. Raises ValueError for GPUs that it has not."""
    import torch

    if os.environ.get("RAY_ADDRESS"):
        return
    try:
        make_plan(config, cluster_has_gpus=torch.cuda.device_count() > 0)
    except PlacementError as error:
        raise ValueError(str(error)) from None


def new_run_dir(config: Config) -> Path:
    """Create the folder of a new run. Raises ValueError when it cannot be written or already holds a run."""
    check_run_dir(config)
    base = Path(config.output.base_dir).expanduser().absolute()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = base / (config.output.run_name or f"{config.algorithm_name}-{dataset_type(config)}-{stamp}-{os.getpid()}")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(f"output folder {path} cannot be written ({error.strerror}): set output.base_dir") from None
    return path


def check_resume(config: Config, run_dir: Path, num_tasks: int) -> None:
    """`config` may go on from the checkpoints of `run_dir`. `num_tasks` 0: not known. Raises ValueError."""
    check_same_run(config, saved_config(run_dir, {}))
    _, state = Checkpoints(run_dir.expanduser().absolute(), config.output.keep_checkpoints).latest()
    if num_tasks and state.step >= arithmetic(config, num_tasks).total_steps:
        algorithm = config.algorithm
        raise ValueError(
            f"{run_dir} has done all of its {state.step} steps: to go on, raise "
            f"{config.algorithm_name}.num_train_epochs (now {algorithm.num_train_epochs}) and max_steps "
            f"(now {algorithm.max_steps or 'null'}) with --override"
        )


def check_same_run(config: Config, saved: Config) -> None:
    """Folder, checkpoints and place in the data follow from these, so a resumed run keeps them. Raises ValueError."""
    for name, now, before in (
        ("seed", config.seed, saved.seed),
        ("dataset", config.dataset, saved.dataset),
        ("rollout_buffer_size", config.algorithm.rollout_buffer_size, saved.algorithm.rollout_buffer_size),
        ("num_agents", config.num_agents, saved.num_agents),
        ("models", config.model_names, saved.model_names),
        ("run_name", config.output.run_name, saved.output.run_name),
    ):
        if now != before:
            raise ValueError(f"a resumed run keeps its {name}: start a new run to change it")


def saved_config(run_dir: Path, overrides: dict[str, Any], note: Callable[[str], None] = lambda line: None) -> Config:
    """The config of an existing run, with overrides. Raises ConfigError."""
    path = run_dir / CONFIG_FILE
    if not path.exists():
        raise ConfigError(f"{run_dir} is no run folder: it has no {CONFIG_FILE}")
    text = path.read_text()
    for name in ALGORITHMS:
        if f"\n{name}:" in text:
            return load(path, name, overrides, note)
    raise ConfigError(f"{path} has no section {' or '.join(ALGORITHMS)}")


def _on_ray(config: Config, trainer: Trainer) -> Outcome:
    import ray

    from marl_ray.cluster.launch import connect

    try:
        say(connect(config.output.verbose))
        return asyncio.run(_until_stopped(trainer.run()))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except ray.exceptions.RayError as error:
        raise RunError(_ray_error(error)) from (error if config.output.verbose else None)
    except (RuntimeError, OSError, ValueError, SandboxUnavailable) as error:
        raise RunError(" ".join(str(error).split())) from (error if config.output.verbose else None)
    finally:
        ray.shutdown()


async def _until_stopped(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run `work`; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _ray_error(error: Exception) -> str:
    """One line of Ray's report: which actor died, or else the last line that names an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    fields = dict(line.split(": ", 1) for line in lines if line.startswith(("name: ", "ip: ", "pid: ")))
    if "name" in fields:
        where = f" on {fields['ip']}" if "ip" in fields else ""
        return f"{fields['name']} died (process {fields.get('pid', 'unknown')}{where}); --resume goes on"
    named = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception", "Expired"))]
    what = (named or lines or [type(error).__name__])[-1]
    return f"an actor failed: {what} (output.verbose=true shows all of it)"


def _remove_if_empty(run_dir: Path) -> None:
    """A run that failed before its first row leaves nothing behind."""
    if {p.name for p in run_dir.iterdir()} <= {CONFIG_FILE}:
        (run_dir / CONFIG_FILE).unlink()
        os.rmdir(run_dir)


def summary(config: Config, trainer: Trainer, outcome: Outcome, seconds: float) -> list[str]:
    """Draw the plot, write the sample episodes, and say in a few lines what happened."""
    from marl_ray.reports.plots import PLOT, plot_returns
    from marl_ray.telemetry.record import SAMPLES, read_metrics

    run_dir = trainer.run_dir
    title = f"{config.algorithm_name} on {dataset_type(config)}: {counted(config.num_agents, 'agent')}"
    rows = read_metrics(run_dir)
    plot_returns(rows, run_dir / PLOT, title)
    lines = [
        f"Trained {counted(config.num_agents, 'agent')} with {config.algorithm.estimator} to step {trainer.step} "
        f"({counted(trainer.env_steps, 'joint sample')}"
        + (f", from step {trainer.first_step}" if trainer.first_step else "")
        + f") in {seconds / 60:.1f} min."
    ]
    files = ["metrics.jsonl", PLOT]
    if outcome.after is not None:
        before = next((row for row in rows if row["step"] == 0 and "eval/turn_1/reward_mean" in row), {})
        trainer.record.samples(f"Episodes of the last evaluation, {title}", outcome.eval_episodes[:8])
        parts = []
        for turn in range(1, config.algorithm.num_turns + 1):
            key = f"eval/turn_{turn}/reward_mean"
            old = f"{before[key]:.2f} -> " if key in before else ""
            parts.append(f"turn {turn} {old}{outcome.after.get(key, float('nan')):.2f}")
        lines.append(f"Mean reward on held-out tasks: {', '.join(parts)}.")
        files.append(SAMPLES)
    files += ["checkpoints/", *(["models/"] if config.output.save_final_model else [])]
    lines.append(f"Results in {run_dir}: {', '.join(files)}.")
    return lines
