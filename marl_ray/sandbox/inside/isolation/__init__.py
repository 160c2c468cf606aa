"""Restrictions that a process puts on itself before it runs any code of a program: seccomp, Landlock, users and limits.

The zygote applies them, and judge and guest right after their fork; `doctor` tries each one in a child process. Imports
only the standard library.
"""
