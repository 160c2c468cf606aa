"""Wait until a Ray cluster has so many live nodes: `wait_for_nodes.py ADDRESS NODES DEADLINE_S`.

Exits 0 when they are there and 1 with one line when the deadline passes. Run on a node of the cluster.
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
    """Whether something accepts connections there; Ray itself tries for a minute, with warnings, before it says no."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=POLL_S).close()
    except OSError:
        return False
    return True


def live_nodes(address: str) -> int:
    """Number of live nodes."""
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    return sum(node["Alive"] for node in ray.nodes())


def main() -> int:
    """Poll until enough nodes are live or the deadline is over."""
    address, wanted, deadline_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    found = 0

    def expire() -> None:
        print(
            f"error: {found} of {wanted} Ray node(s) at {address} after {deadline_s:g} s", file=sys.stderr, flush=True
        )
        os._exit(1)  # also out of a call into Ray that hangs

    timer = threading.Timer(deadline_s, expire)
    timer.daemon = True
    timer.start()
    while found < wanted:
        if head_listens(address):
            found = live_nodes(address)
        if found < wanted:
            time.sleep(POLL_S)
    timer.cancel()
    print(f"{found} Ray node(s) at {address}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
