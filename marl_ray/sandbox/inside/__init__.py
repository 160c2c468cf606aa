"""What runs behind the wall: zygote, judge and guest, and the primitives that build the wall.

The zygote is started as a bare interpreter (no site-packages, empty environment) and imports this package by
itself, under the name `inside`; so its modules use relative imports and the standard library only. The owner
imports a few of them too (`testforms` to count tests, the primitives for the doctor).
"""
