"""One run: check, folder, Ray, loop, summary; and what becomes of it when it is stopped or fails."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from marl_ray.actors.handle import ActorDied
from marl_ray.cluster.cluster_health import ClusterLost, find_lost_node, watch_head
from marl_ray.cluster.ray_connection import connect, disconnect
from marl_ray.config import Config, to_yaml
from marl_ray.config.budget import describe_budget, training_budget
from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainingResult
from marl_ray.core.stop_signals import StopSignals
from marl_ray.launch.run_checks import check, check_new_folder, folder_of
from marl_ray.launch.training_session import TrainingSession
from marl_ray.reports.returns_plot import plot_run
from marl_ray.reports.run_summary import plot_title, read_metrics, write_run_summary
from marl_ray.storage.resume import ResumeState, RunIsDone, SavedRun, same_learning_settings
from marl_ray.storage.run_folder import RunFolder
from marl_ray.storage.run_lock import hold_lock
from marl_ray.telemetry import logs
from marl_ray.telemetry.timing import StartupTimer
from marl_ray.trainer.context import RunInputs

logger = logging.getLogger(__name__)

RAY_PACKAGE = "_ray_pkg_"
"""In the path of the copy of --working-dir that a Ray job runs in."""
FULL_OR_CLOSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a disk says that is a person's to mend."""


def train(config: Config, saved: SavedRun | None = None) -> None:
    """Train, blocking; `saved` is the run to go on with. Raises UserError, and KeyboardInterrupt when stopped.

    Any other exception is a bug: the run folder keeps its traceback, and a note on it says where.
    """
    with StopSignals() as signals:
        logs.configure()
        begun, startup = time.monotonic(), StartupTimer()
        try:
            with startup.part("checks"):
                problem = check(config, saved)
        except RunIsDone as done:
            if config.output.resume == "never":
                raise
            logger.info(str(done))
            return
        folder = folder_of(config) if saved is None else saved.folder
        folder.make()
        with hold_lock(folder.lock), logs.log_file(folder.log_file):
            _train(config, saved, problem, folder, begun, signals, startup)


def _train(
    config: Config,
    saved: SavedRun | None,
    problem: RunInputs,
    folder: RunFolder,
    begun: float,
    signals: StopSignals,
    startup: StartupTimer,
) -> None:
    """The run, in a folder that is its own."""
    try:
        folder.requests.clear()  # of a run that ended without a word
        folder.remove_incomplete()  # likewise
        if saved is None:
            check_new_folder(folder)  # nobody was there meanwhile
            folder.write_config(to_yaml(config), 0)
        total = training_budget(config, len(problem.train_tasks)).total_steps
        standing = ResumeState.at_start() if saved is None else _go_on(config, saved, len(problem.train_tasks), total)
        folder.log.drop_from(standing.logged)  # what is left of another history
        _introduce(config, folder, len(problem.train_tasks))
        folder.error.unlink(missing_ok=True)
        result = _on_ray(config, TrainingSession(config, problem, folder, standing, startup), signals)
        for line in write_run_summary(config, folder, result, time.monotonic() - begun):
            logger.info(line)
    except KeyboardInterrupt:
        logger.info(_stopped(folder))
        _draw(config, folder)
        raise
    except (ActorDied, ClusterLost) as error:
        raise UserError(f"{error}{_goes_on(folder)}") from error
    except UserError:
        raise
    except Exception as error:
        no_room = _cannot_write(error, folder)
        if no_room:
            raise UserError(f"{no_room}{_goes_on(folder)}") from error
        error.add_note(_keep_traceback(folder))
        raise
    finally:
        folder.requests.clear()
        folder.remove_incomplete()
        folder.remove_if_empty()


def _go_on(config: Config, saved: SavedRun, num_tasks: int, total: int) -> ResumeState:
    """Where the run stands, said."""
    standing = ResumeState.of(saved.folder, total)
    step, logged = standing.state.step, standing.logged
    if logged > step and not same_learning_settings(config, saved, num_tasks):
        standing = standing.without_log()
        logger.info(
            f"goes on after step {step}: settings of learning have changed, so steps to {logged} are taken again"
        )
    else:
        begun = f"the checkpoint of step {step}" if step else "the base models"
        again = f", and steps to {logged} are learned again from the log" if logged > step else ""
        logger.info(f"goes on after step {logged}: from {begun}{again}")
    return standing


def _cannot_write(error: Exception, folder: RunFolder) -> str | None:
    """What to say of a disk that is full or closed, here or in an actor; None: the error is another one, even if the
    disk happens to be full. Libraries in Rust say the number in words alone. A file that is not the run's is named."""
    cause = getattr(error.__cause__, "cause", None) or error  # Ray's error has what the actor raised
    if isinstance(cause, OSError) and cause.errno in FULL_OR_CLOSED:
        named = Path(os.fsdecode(cause.filename)) if isinstance(cause.filename, str | bytes) else folder.path
        if named.is_absolute() and not named.is_relative_to(folder.path):
            return str(error)
        why = cause.strerror
    elif found := [number for number in FULL_OR_CLOSED if f"(os error {number})" in str(cause)]:
        why = os.strerror(found[0])
    else:
        return None
    return f"{folder} cannot be written ({why}): make room there, or set another output.base_dir"


def _introduce(config: Config, folder: RunFolder, num_tasks: int) -> None:
    """What should be known before the first step."""
    cut = config.model.top_k or any(agent.top_p < 1 for agent in config.agents)
    if config.importance == "none" and (cut or config.rollout.max_staleness):
        logger.info(
            "note: the sampler's distribution is not the learner's (top_p, top_k or max_staleness), and "
            f"{config.algorithm}.importance is none, so gradients are slightly "
            "off-policy; agent_*/logprob_gap shows by how much"
        )
    if RAY_PACKAGE in str(folder):
        logger.warning(
            f"results go to {folder}, which Ray deletes with the job: set output.base_dir to a shared folder"
        )
    for line in describe_budget(config, num_tasks).splitlines():
        logger.info(line)
    logger.info(f"results go to {folder}")


def _on_ray(config: Config, session: TrainingSession, signals: StopSignals) -> TrainingResult:
    """The loop, on the cluster or on this machine."""
    try:
        with session.startup.part("Ray"):
            logger.info(connect(config.output.verbose))
        with watch_head(lambda line: _end_at_once(line, session.folder)):
            return signals.run(session.run)
    except ActorDied as error:
        node = find_lost_node()
        raise ClusterLost(f"{node}: {error}") if node else error from None
    finally:
        disconnect(keep_logs=isinstance(sys.exception(), Exception))


def _end_at_once(line: str, folder: RunFolder) -> NoReturn:
    """End this process without a word to Ray, which would wait for its head: actors end with their driver."""
    print(f"error: {line}{_goes_on(folder)}", file=sys.stderr, flush=True)
    os._exit(1)


def _goes_on(folder: RunFolder) -> str:
    """What to do after an end that is nobody's mistake, if there is something to go on from."""
    return f"; --resume {folder} goes on" if not folder.is_empty else ""


def _draw(config: Config, folder: RunFolder) -> None:
    """The plot of a run that was stopped, if it has a step to show. A disk that takes no plot is no news then."""
    rows = read_metrics(folder) if folder.metrics.exists() else []
    if not any("rollout/episodes" in row for row in rows):
        return
    try:
        plot_run(rows, folder.plot, plot_title(config))
    except OSError as error:
        logger.warning(f"{folder.plot} cannot be written ({error.strerror})")


def _stopped(folder: RunFolder) -> str:
    """Where a run was stopped, and where it would go on."""
    if folder.is_empty:
        return "stopped before the first step"
    step = max((row["step"] for row in read_metrics(folder)), default=0) if folder.metrics.exists() else 0
    logged = ResumeState.of(folder).logged
    return f"stopped at step {step}; --resume {folder} goes on from " + (f"step {logged}" if logged else "the start")


def _keep_traceback(folder: RunFolder) -> str:
    """Write the exception that is being handled to the run folder; a line that says where it is."""
    try:
        folder.error.write_text(traceback.format_exc())
    except OSError as error:
        return f"This is a bug, or something nobody thought of; {folder} cannot keep it ({error.strerror})."
    return f"This is a bug, or something nobody thought of: {folder.error} keeps it."
