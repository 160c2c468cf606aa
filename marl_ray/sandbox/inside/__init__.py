"""The isolated side of the sandbox: the folder of a file tells which process runs the file
(docs/explanation/sandbox.md).

The zygote runs in a bare interpreter (no site-packages, empty environment), which imports this package under the name
`inside`. Imports are therefore relative, and the standard library is the only dependency.
"""
