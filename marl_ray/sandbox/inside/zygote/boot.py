"""What the owner starts: `python -s -S -P -B boot.py OWNER_DESCRIPTOR LIFELINE_DESCRIPTOR`.

Only this file is a script; it makes the package that it lies in importable under the name `inside`, whatever else is
installed, and leaves no trace of that in `sys.path`.
"""

import os
import sys

if __name__ == "__main__":
    inside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, os.path.dirname(inside))
    from inside.zygote import zygote  # type: ignore[import-not-found]

    del sys.path[0]
    zygote.main(int(sys.argv[1]), int(sys.argv[2]))
