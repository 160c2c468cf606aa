"""Wait until a Ray cluster has a number of live nodes: `wait_for_nodes.py ADDRESS NODES DEADLINE_S`.

Run it on a node of the cluster. The exit code is 1, with one line on standard error, if the deadline passes.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time

import ray

POLL_S = 1.0


def head_listens(address: str) -> bool:
    """Return whether the address accepts connections; Ray itself retries for a minute, with warnings."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=POLL_S).close()
    except OSError:
        return False
    return True


def count_live_nodes(address: str) -> int:
    """Return the number of live nodes."""
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    return sum(node["Alive"] for node in ray.nodes())


def main() -> int:
    """Poll until enough nodes are live or the deadline passes."""
    address, expected, deadline_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    live = 0

    def expire() -> None:
        print(
            f"error: {live} of {expected} Ray node(s) at {address} after {deadline_s:g} s", file=sys.stderr, flush=True
        )
        os._exit(1)  # also interrupts a hanging call into Ray

    timer = threading.Timer(deadline_s, expire)
    timer.daemon = True
    timer.start()
    while live < expected:
        if head_listens(address):
            live = count_live_nodes(address)
        if live < expected:
            time.sleep(POLL_S)
    timer.cancel()
    print(f"{live} Ray node(s) at {address}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
