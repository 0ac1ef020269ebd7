"""Where Python looks for modules: the directory of a flow comes last, so nothing in it takes the place of anything.

Python itself puts the directory of a script, or the current one, in front of its path. A `types.py` there is then what
everything in the process gets that imports `types`: Spark, Arrow, this package. So processes of ours are started with
`SAFELY`, and find a flow's own modules behind all others.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Options of an interpreter that puts nothing in front of its path, and the same as its environment.
SAFELY = ("-P",)
SAFELY_VARIABLE = "PYTHONSAFEPATH"

_last: str | None = None


def put_last(directory: Path) -> None:
    """Have the modules of a flow's directory found, behind all others; those of the flow before it no longer."""
    global _last
    if _last in sys.path:
        sys.path.remove(_last)
    found = str(directory.resolve())
    _last = None if found in sys.path else found
    if _last is not None:
        sys.path.append(_last)


def for_tasks(*last: Path) -> str:
    """This process's path as a PYTHONPATH for other processes: what Python put in front for a script comes last."""
    entries = [str(Path(entry).absolute()) for entry in sys.path]
    in_front = set() if sys.flags.safe_path else {str(Path.cwd()), _directory_of_the_script()}
    behind = [entry for entry in entries if entry in in_front]
    ordered = (
        [entry for entry in entries if entry not in in_front]
        + behind
        + [str(path.resolve()) for path in last]
    )
    return os.pathsep.join(dict.fromkeys(ordered))


def _directory_of_the_script() -> str:
    """Of this process; an empty one, as in a notebook, is nobody's."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(file).absolute().parent) if file else ""
