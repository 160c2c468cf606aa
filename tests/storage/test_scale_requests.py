"""Requests to a run are atomic, validated and removed afterwards."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.storage import scale_requests as module
from marl_ray.storage.run_lock import hold_lock, lock_holder
from marl_ray.storage.scale_requests import ScaleReply, ScaleRequest, ScaleRequests, request_scaling

ID = "0123456789abcdef"


@pytest.fixture
def requests(tmp_path: Path) -> ScaleRequests:
    return ScaleRequests(tmp_path / "requests")


def test_a_request_is_taken_once(requests: ScaleRequests) -> None:
    assert requests.take() == []
    id = requests.put(ScaleRequest(1, 3))
    assert requests.take() == [(id, ScaleRequest(1, 3))]
    assert requests.take() == []
    assert requests.answer(id) is None
    requests.settle(id, ScaleReply(True, "done"))
    assert requests.answer(id) == ScaleReply(True, "done")
    requests.withdraw(id)
    assert not requests.folder.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is JSON"),
        ("\xff", "is JSON"),
        ("[" * 4000, "is JSON|has agent and replicas"),
        ("[1, 2]", "has agent and replicas"),
        ('{"agent": 0}', "has agent and replicas"),
        ('{"agent": 0, "replicas": 1, "more": 2}', "has agent and replicas"),
        ('{"agent": true, "replicas": 1}', "are whole numbers"),
        ('{"agent": 0, "replicas": 2.5}', "are whole numbers"),
        ('{"agent": 0, "replicas": 0}', "^0 replicas: an agent has 1 to"),
        ('{"agent": 0, "replicas": 1000000}', "^1000000 replicas: an agent has 1 to"),
        (json.dumps({"agent": 0, "replicas": 1, "more": "x" * 5000}), "no more than 4096 bytes"),
    ],
)
def test_an_invalid_request_is_refused(content: str, says: str, requests: ScaleRequests) -> None:
    requests.folder.mkdir()
    (requests.folder / f"{ID}.json").write_bytes(content.encode("latin-1"))
    ((id, error),) = requests.take()
    assert id == ID
    with pytest.raises(UserError, match=says):
        raise error  # type: ignore[misc]
    assert list(requests.folder.iterdir()) == []


def test_other_files_are_ignored(requests: ScaleRequests, tmp_path: Path) -> None:
    requests.folder.mkdir()
    (tmp_path / "elsewhere").write_text('{"agent": 0, "replicas": 1}')
    (requests.folder / f"{ID}.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(requests.folder / f"{ID[::-1]}.json")
    (requests.folder / "notes.json").write_text("{}")
    assert requests.take() == []
    assert len(list(requests.folder.iterdir())) == 3


def test_a_request_without_a_run_is_an_error(requests: ScaleRequests, tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    with pytest.raises(UserError, match=r"is not being run: only a run in progress can be scaled$"):
        request_scaling(requests, lock, ScaleRequest(0, 1), 10)
    lock.write_text("process 1 on somewhere, killed\n")
    with pytest.raises(UserError, match="is not being run"):
        request_scaling(requests, lock, ScaleRequest(0, 1), 10)
    assert not requests.folder.exists()


def test_the_client_gets_the_answer(requests: ScaleRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_INTERVAL_S", 0.02)
    answers = {ScaleRequest(1, 3): ScaleReply(True, "three"), ScaleRequest(1, 4): ScaleReply(False, "no room")}
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.01):
            for id, request in requests.take():
                assert isinstance(request, ScaleRequest)
                if request in answers:
                    requests.settle(id, answers[request])

    with hold_lock(tmp_path / "run.lock"):
        assert (lock_holder(tmp_path / "run.lock") or "").startswith(f"process {os.getpid()} on ")
        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert request_scaling(requests, tmp_path / "run.lock", ScaleRequest(1, 3), 10) == "three"
            with pytest.raises(UserError, match=r"^no room$"):
                request_scaling(requests, tmp_path / "run.lock", ScaleRequest(1, 4), 10)
            with pytest.raises(UserError, match=r"^process \d+ on .* has not answered in 0.1 s"):
                request_scaling(requests, tmp_path / "run.lock", ScaleRequest(1, 5), 0.1)
        finally:
            over.set()
            thread.join(10)
    assert not requests.folder.exists()
