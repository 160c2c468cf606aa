"""The caller's side: starts the isolated processes, sends programs, waits for reports, and restarts failed processes.

Runs in the host process and is the only part that does. Imports from `inside` only `protocol` and `suites`, which both
sides need; `doctor` also tries `isolation`.
"""
