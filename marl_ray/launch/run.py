"""A training run from its checks to its summary, including interruption and failure."""

from __future__ import annotations

import datetime
import logging
import os
import re
import shlex
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from marl_ray.actors.handle import ActorDied
from marl_ray.cluster.cluster_health import ClusterLost, find_lost_node, watch_head
from marl_ray.cluster.ray_connection import connect, disconnect
from marl_ray.config import Config, to_yaml
from marl_ray.config.budget import training_budget
from marl_ray.config.budget_text import describe_budget
from marl_ray.core.errors import UserError
from marl_ray.core.files import DISK_ERRORS
from marl_ray.core.state import TrainingResult
from marl_ray.core.stop_signals import StopSignals
from marl_ray.launch.run_checks import check, check_new_folder, folder_of, tasks_by_split
from marl_ray.launch.training_session import TrainingSession
from marl_ray.results.closing_lines import closing_lines
from marl_ray.results.returns_plot import plot_run
from marl_ray.results.run_summary import plot_title, read_metrics, write_run_summary
from marl_ray.storage.resume import ResumeState, RunIsDone, SavedRun, same_learning_settings
from marl_ray.storage.run_folder import RunFolder
from marl_ray.storage.run_lock import hold_lock
from marl_ray.storage.task_digests import write_task_digests
from marl_ray.telemetry import logs
from marl_ray.telemetry.terminal import columns, fit, is_terminal, printable
from marl_ray.telemetry.timing import StartupTimer
from marl_ray.trainer.context import RunInputs

logger = logging.getLogger(__name__)

RAY_PACKAGE = "_ray_pkg_"
"""Part of the path of a Ray job's working directory, which Ray deletes with the job."""
RUST_ERROR = re.compile(r"\(os error (\d+)\)")
"""The number of an error of the operating system in the message of a library that is written in Rust."""


def train(config: Config, saved: SavedRun | None = None, startup: StartupTimer | None = None) -> RunFolder:
    """Train until the run ends and return its folder; `saved` is the run to resume. By default, the time since the
    process began counts as its start.

    Raises UserError, and KeyboardInterrupt when stopped.

    Any other exception is a bug: its traceback is written to the run folder, and a note on the exception says where.
    """
    with StopSignals() as signals:
        started = time.monotonic()
        if startup is None:
            startup = StartupTimer()
        if saved is None and config.model.template_date is None:
            # Some chat templates write the date: a resumed run keeps the date of its start.
            today = datetime.date.today().isoformat()
            config = replace(config, model=replace(config.model, template_date=today))
        folder = folder_of(config) if saved is None else saved.folder
        try:
            with startup.part("checks"):
                inputs = check(config, saved)
        except RunIsDone as done:
            if config.output.resume == "never":
                raise
            logger.info(str(done))
            return folder
        folder.make()
        with hold_lock(folder.lock), logs.log_file(folder.log_file):
            _train(config, saved, inputs, folder, started, signals, startup)
        return folder


def _train(
    config: Config,
    saved: SavedRun | None,
    inputs: RunInputs,
    folder: RunFolder,
    started: float,
    signals: StopSignals,
    startup: StartupTimer,
) -> None:
    """Run in `folder`, whose lock this process holds."""
    try:
        folder.requests.clear()  # left by a run that was killed
        folder.remove_incomplete()
        if saved is None:
            check_new_folder(folder)  # no run has started there since the checks
            folder.write_config(to_yaml(config), 0)
        if not folder.tasks.exists():
            write_task_digests(folder.tasks, tasks_by_split(config, inputs.train_tasks, inputs.eval_tasks))
        num_tasks = len(inputs.train_tasks)
        resume_state = ResumeState.at_start() if saved is None else _resume(config, saved, num_tasks)
        folder.log.drop_from(resume_state.logged)  # batches behind the point from which the run resumes
        _log_plan(config, folder, num_tasks)
        _show_prompts(config, folder, inputs)
        folder.error.unlink(missing_ok=True)
        with signals.replace_errors():
            result = _on_ray(config, TrainingSession(config, inputs, folder, resume_state, startup), signals)
        seconds = time.monotonic() - started
        for line in write_run_summary(config, folder, result, seconds):
            logger.info(line, extra=logs.for_terminal(""))
        if is_terminal():
            logs.show("\n".join(closing_lines(config, folder, result, seconds)))
    except KeyboardInterrupt:
        logger.info(_describe_stop(folder))
        _plot(config, folder)
        raise
    except (ActorDied, ClusterLost) as error:
        raise UserError(f"{error}{_resume_hint(folder)}") from error
    except UserError:
        raise
    except Exception as error:
        disk_error = _describe_disk_error(error, folder)
        if disk_error is not None:
            raise UserError(f"{disk_error}{_resume_hint(folder)}") from error
        error.add_note(_keep_traceback(folder))
        raise
    finally:
        _tidy(folder)


def _resume(config: Config, saved: SavedRun, num_tasks: int) -> ResumeState:
    """Return the resume state of the run, and log it."""
    resume_state = ResumeState.of(saved.folder, training_budget(config, num_tasks).total_steps)
    step = resume_state.state.step
    logged = resume_state.logged
    if logged > step and not same_learning_settings(config, saved, num_tasks):
        logger.info(f"resuming after step {step}: learning settings have changed, so steps up to {logged} are repeated")
        return resume_state.without_log()
    source = f"the checkpoint of step {step}" if step else "the base models"
    if logged > step:
        source += f" and the logged batches up to step {logged}"
    logger.info(f"resuming after step {logged} from {source}")
    return resume_state


def _describe_disk_error(error: Exception, folder: RunFolder) -> str | None:
    """Return the message for an error of a full or read-only disk, in this process or in an actor; else None.

    Libraries written in Rust give the error number only as text. A file outside the run folder is named.
    """
    cause = getattr(error.__cause__, "cause", None) or error  # Ray's error contains the actor's
    if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
        if isinstance(cause.filename, str | bytes):
            file = Path(os.fsdecode(cause.filename))
            if file.is_absolute() and not file.is_relative_to(folder.path):
                return str(error)
        reason = cause.strerror
    else:
        # An error from Rust has the number as text only: `No space left on device (os error 28)`.
        match = RUST_ERROR.search(str(cause))
        if match is None or int(match[1]) not in DISK_ERRORS:
            return None
        reason = os.strerror(int(match[1]))
    return f"{folder} cannot be written ({reason}): free space there, or set another output.base_dir"


def _log_plan(config: Config, folder: RunFolder, num_tasks: int) -> None:
    if config.importance == "none" and (config.truncates_sampling or config.training.max_staleness):
        logger.info(
            "note: the sampling distribution differs from the policy (top_p, top_k, min_new_tokens or max_staleness), "
            f"and {config.algorithm}.importance is none, so gradients are slightly off-policy; see agent_*/logprob_gap"
        )
    if RAY_PACKAGE in str(folder):
        reason = "which Ray deletes with the job: set output.base_dir to a shared folder"
        logger.warning(f"results are written to {folder}, {reason}")
    for line in describe_budget(config, num_tasks).splitlines():
        logger.info(line)
    logger.info(f"results are written to {folder}")


def _show_prompts(config: Config, folder: RunFolder, inputs: RunInputs) -> None:
    """Write each agent's first prompt to the run folder, and log it, in full with `output.verbose`."""
    texts = []
    for prompt in inputs.rendered_prompts:
        if config.output.verbose:
            logger.info(f"{prompt.title}:\n{prompt.text}")
        else:
            on_terminal = fit(printable(prompt.excerpt), columns() - 1).rstrip()
            logger.info(prompt.excerpt, extra=logs.for_terminal(on_terminal))
        texts.append(f"=== {prompt.title}\n{prompt.text}\n")
    folder.first_prompts.write_text("\n".join(texts), encoding="utf-8")


def _on_ray(config: Config, session: TrainingSession, signals: StopSignals) -> TrainingResult:
    """Run the session on the cluster or on a local Ray instance."""
    try:
        with session.startup.part("Ray"):
            logger.info(connect(config.output.verbose))
        with watch_head(lambda line: _exit_now(line, session.folder, signals)):
            return signals.run(session.run)
    except ActorDied as error:
        node = find_lost_node()
        raise ClusterLost(f"{node}: {error}") if node else error from None
    finally:
        disconnect(keep_logs=isinstance(sys.exception(), Exception))


def _exit_now(line: str, folder: RunFolder, signals: StopSignals) -> NoReturn:
    """End this process without shutting Ray down, which would wait for the lost head. Actors end with their driver.

    Ray's processes may have received the signal that stops this run: batch systems send it to all processes of a job.
    """
    error = line
    try:
        if signals.received is not None:
            logger.info(_describe_stop(folder))
        error += _resume_hint(folder)
        _tidy(folder)
    finally:
        signals.exit_process(error)


def _tidy(folder: RunFolder) -> None:
    folder.requests.clear()
    folder.remove_incomplete()
    folder.remove_if_empty()


def _resume_hint(folder: RunFolder) -> str:
    return "" if folder.is_empty else f"; --resume {shlex.quote(str(folder))} continues"


def _plot(config: Config, folder: RunFolder) -> None:
    """Plot an interrupted run that has recorded a step. Warn if the plot cannot be written."""
    rows = read_metrics(folder) if folder.metrics.exists() else []
    try:
        if any("rollout/episodes" in row for row in rows):
            plot_run(rows, folder.plot, plot_title(config))
    except OSError as error:
        logger.warning(f"{folder.plot} cannot be written ({error.strerror})")


def _describe_stop(folder: RunFolder) -> str:
    """Return where a run was stopped and where it would resume."""
    if folder.is_empty:
        return "stopped before the first step"
    rows = read_metrics(folder) if folder.metrics.exists() else []
    step = max((row["step"] for row in rows), default=0)
    logged = ResumeState.of(folder).logged
    start = f"step {logged}" if logged else "the start"
    return f"stopped at step {step}; --resume {shlex.quote(str(folder))} continues from {start}"


def _keep_traceback(folder: RunFolder) -> str:
    """Write the current exception to the run folder. Return a line for the user."""
    try:
        folder.error.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError as error:
        return f"Unexpected error. Please report it; {folder} cannot store the traceback ({error.strerror})."
    return f"Unexpected error. Please report it and attach this file: {folder.error}"
