"""Message formats and data classes of all processes: frames, fork requests, values as tagged JSON, limits and verdicts.

Runs in the host process, zygote, judge and guests, and has no state of its own. Imports only the standard library.
"""
