"""Script that the host process starts: `python -s -S -P -B boot.py HOST LIFELINE PROGRESS` (descriptors).

It makes its package importable under the name `inside`, independently of installed packages, and removes the path
again.
"""

import os
import sys

if __name__ == "__main__":
    inside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, os.path.dirname(inside))
    from inside.zygote import zygote  # type: ignore[import-not-found]

    del sys.path[0]
    sys.exit(zygote.main(*map(int, sys.argv[1:])))
