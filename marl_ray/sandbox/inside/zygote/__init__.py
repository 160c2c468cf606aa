"""The process that the host process starts and that forks all others. It never sees a program, a test or a report.

It imports everything, once, so judge and guests start with all modules loaded and none of each other's data.
"""
