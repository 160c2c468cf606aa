"""One run: check, folder, Ray, loop, summary; and what becomes of it when it is stopped or fails."""

from __future__ import annotations

import errno
import time
import traceback

from marl_ray.actors.handle import ActorDied
from marl_ray.cluster.local import connect, disconnect
from marl_ray.cluster.loss import ClusterLost, lost_node, while_head_answers
from marl_ray.config import Config, to_yaml
from marl_ray.config.arithmetic import describe
from marl_ray.core.errors import UserError
from marl_ray.reports.summary import conclude, rows_of
from marl_ray.runs.check import check, folder_of
from marl_ray.runs.folder import RunFolder
from marl_ray.runs.resume import SavedRun
from marl_ray.runs.session import Session
from marl_ray.runs.stopping import Signals
from marl_ray.telemetry.console import say
from marl_ray.trainer import Result

RAY_PACKAGE = "_ray_pkg_"
"""In the path of the copy of --working-dir that a Ray job runs in."""
FULL_OR_CLOSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a disk says that is a person's to mend."""


def train(config: Config, saved: SavedRun | None = None) -> None:
    """Train, blocking; `saved` is the run to go on with. Raises UserError, and KeyboardInterrupt when stopped.

    Any other exception is a bug: the run folder keeps its traceback, and a note on it says where.
    """
    with Signals() as signals:
        _train(config, saved, signals)


def _train(config: Config, saved: SavedRun | None, signals: Signals) -> None:
    begun = time.monotonic()
    problem = check(config, saved)
    folder = _new_run(config) if saved is None else saved.folder
    try:
        resumed = None if saved is None else folder.checkpoints.latest()
        _introduce(config, folder, len(problem.train_tasks))
        folder.error.unlink(missing_ok=True)
        result = _on_ray(config, Session(config, problem, folder, resumed), signals)
        for line in conclude(config, folder, result, time.monotonic() - begun):
            say(line)
    except KeyboardInterrupt:
        say(_stopped(folder))
        raise
    except (ActorDied, ClusterLost) as error:
        raise UserError(f"{error}{_goes_on(folder)}") from error
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL_OR_CLOSED:
            where = error.filename or folder
            raise UserError(f"{where} cannot be written ({error.strerror}): see to output.base_dir") from None
        error.add_note(_keep_traceback(folder))
        raise
    finally:
        folder.remove_if_empty()


def _new_run(config: Config) -> RunFolder:
    folder = folder_of(config)
    folder.make()
    folder.config.write_text(to_yaml(config))
    return folder


def _introduce(config: Config, folder: RunFolder, num_tasks: int) -> None:
    """What should be known before the first step."""
    if config.model.top_k or any(agent.top_p < 1 for agent in config.agents):
        say(
            "note: top_p or top_k cuts the sampler's distribution but not the learner's, so gradients are slightly "
            "off-policy; agent_*/logprob_gap shows by how much"
        )
    if RAY_PACKAGE in str(folder):
        say(f"warning: results go to {folder}, which Ray deletes with the job: set output.base_dir to a shared folder")
    for line in describe(config, num_tasks).splitlines():
        say(line)
    say(f"results go to {folder}")


def _on_ray(config: Config, session: Session, signals: Signals) -> Result:
    """The loop, on the cluster or on this machine."""
    try:
        say(connect(config.output.verbose))
        return signals.run(while_head_answers(session.run()))
    except ActorDied as error:
        node = lost_node()
        raise ClusterLost(f"{node}: {error}") if node else error from None
    finally:
        disconnect()


def _goes_on(folder: RunFolder) -> str:
    """What to do after an end that is nobody's mistake, if there is something to go on from."""
    return f"; --resume {folder} goes on" if folder.checkpoints.all() else ""


def _stopped(folder: RunFolder) -> str:
    """Where a run was stopped, and where it would go on."""
    step = max((row["step"] for row in rows_of(folder)), default=0) if folder.metrics.exists() else 0
    if not folder.checkpoints.all():
        return f"stopped at step {step}, before the first checkpoint"
    _, state = folder.checkpoints.latest()
    return f"stopped at step {step}; --resume {folder} goes on from the last checkpoint, step {state.step}"


def _keep_traceback(folder: RunFolder) -> str:
    """Write the exception that is being handled to the run folder; a line that says where it is."""
    try:
        folder.error.write_text(traceback.format_exc())
    except OSError as error:
        return f"This is a bug, or something nobody thought of; {folder} cannot keep it ({error.strerror})."
    return f"This is a bug, or something nobody thought of: {folder.error} keeps it."
