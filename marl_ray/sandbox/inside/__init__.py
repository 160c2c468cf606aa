"""The isolated side of the sandbox. The folder of a file tells which process runs the file:

- `zygote`: the fork server, which sets up the isolation and forks the judge and the guests.
- `judge`: one process, which holds the tests and is the only one to give the verdict "pass".
- `guest`: one process per program, the only one that runs code of a program.
- `suites`: parsing of tests; runs in the judge, and in the host process, which counts tests.
- `protocol`: message formats and data classes of all processes.
- `isolation`: restrictions that a process puts on itself.

`zygote` imports `judge` and `guest`, which do not import each other; `judge` imports `suites`; these three import
`protocol`, and all but `guest` import `isolation`. `suites`, `protocol` and `isolation` import none of the others. The
zygote runs in a bare interpreter (no site-packages, empty environment), which imports this package under the name `inside`.
Imports are therefore relative, and the standard library is the only dependency.
"""
