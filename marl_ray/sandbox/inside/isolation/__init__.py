"""What a process does to itself before any code of a program is near: seccomp, Landlock, rights and limits.

Run by the zygote, and by judge and guest right after their fork; the owner's doctor tries each part in a child of its
own. Imports nothing but the standard library.
"""
