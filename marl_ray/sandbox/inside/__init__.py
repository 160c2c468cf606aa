"""What runs behind the wall. The folder of a file is the process that runs it:

- `zygote`: the fork server, which builds the wall, forks the judge, and then guests.
- `judge`: one process, holds the tests and alone says "pass".
- `guest`: a process for each program, the only one that runs code of a program.
- `suites`: what tests mean, from their text; run in the judge, and in the owner, which counts tests.
- `wire`: both ends of every conversation.
- `wall`: what a process puts between itself and the machine.

`zygote` imports `judge` and `guest`, which know nothing of each other; `judge` imports `suites`; these three import
`wire`, and all but `guest` import `wall`. `suites`, `wire` and `wall` import none of the others. The zygote is started
as a bare interpreter (no site-packages, empty environment) and imports this package by itself, under the name `inside`;
so it has relative imports, and the standard library only.
"""
