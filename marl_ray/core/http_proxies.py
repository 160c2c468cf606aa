"""Proxies of this process, which servers on this machine must not use."""

from __future__ import annotations

import os

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def bypass_proxies_for_localhost() -> None:
    """Add this machine to `no_proxy`, for HTTP clients that are made later.

    Clusters set `http_proxy` for the way out. Without `no_proxy` a client would send the request for a judge or gateway
    on localhost to the proxy, which does not reach it.
    """
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host.strip() for host in listed.split(",") if host.strip()]
    if "*" in hosts:
        return
    for host in LOCAL_HOSTS:
        if host not in hosts:
            hosts.append(host)
    # Some libraries read one spelling only.
    os.environ["no_proxy"] = ",".join(hosts)
    os.environ["NO_PROXY"] = ",".join(hosts)
