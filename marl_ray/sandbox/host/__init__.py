"""The caller's side: starts the processes, sends programs, waits for reports with a deadline, restarts what broke.

Runs in the process of whoever uses the sandbox, and is the only part that does. Imports of `inside` what both sides
need (`wire`, `suites`) and the primitives that the doctor tries (`wall`).
"""
