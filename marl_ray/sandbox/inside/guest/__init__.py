"""The guest process, the only process that runs a program; answers the judge's requests.

No property of this code is relied on, since the program can rewrite it. It imports `protocol`, never `judge` or
`suites`.
"""
