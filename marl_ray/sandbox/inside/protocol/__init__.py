"""Both ends of every conversation: frames, the orders of the zygote, values as tagged JSON, limits and verdicts.

Runs in owner, zygote, judge and guest; it has no state of its own. Imports nothing but the standard library.
"""
