"""Script that the host process starts: `python -s -S -P -B boot.py HOST_DESCRIPTOR LIFELINE_DESCRIPTOR`.

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
    zygote.main(int(sys.argv[1]), int(sys.argv[2]))
