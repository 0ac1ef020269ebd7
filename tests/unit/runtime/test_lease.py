"""A lease is raised for as long as its process gets to run, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.runtime.lease import Lease, lease_path, read_lease

RAISES = """
import sys, time
from pathlib import Path
from holdfast.runtime.lease import Lease
Lease(Path(sys.argv[1]), "w")
time.sleep(60)
"""


def test_a_lease_is_raised_until_it_is_closed(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "w", lease_ms=20)
    deadline = time.monotonic() + 30
    while (read_lease(tmp_path, "w") or 0) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lease.close()
    assert not lease_path(tmp_path, "w").exists()
    assert read_lease(tmp_path, "w") is None


def test_a_process_that_dies_before_it_renews_leaves_the_counter_where_it_was(tmp_path: Path) -> None:
    env = {**os.environ, "HOLDFAST_CRASH": "lease.before_renew:3"}
    done = subprocess.run([sys.executable, "-c", RAISES, str(tmp_path)], env=env, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert read_lease(tmp_path, "w") == 2
