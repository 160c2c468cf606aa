"""Ray actors (generators, learners, sandbox workers), and their proxies in the driver."""
