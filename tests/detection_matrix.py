"""The matrix of detection on a real flow: every load with everything that can befall a worker.

    PYTHONPATH=tests python tests/detection_matrix.py [--loads idle,busy,nice] [--faults healthy,...] [--healthy SECONDS]
        [--rule RULE] [--native]

`holdfast run` on the flow of the tests, with a warm standby. Per load one run: first it is left alone for the time of
`healthy` (300 s, or MATRIX_HEALTHY_S), in which nobody may be replaced and epochs must go on; then one fault after the other
befalls the primary, each when a standby is warm, with the load from the fault until it was replaced. Loads: `idle`; `busy`,
24 processes that want a CPU; `nice`, all of the flow at nice 19 beside one busy process per CPU.

`--rule` plants a wrong rule into the supervisor, `--native` a lease that does not need the interpreter: then cells must fail.
The exit status is 1 if a cell failed. All cells take about an hour on two cores.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from guard import HOLDFAST, Guard
from holdfast.core import limits
from holdfast.ledger.process import Process
from holdfast.runtime.evidence import kin
from load import busy
from stand import Stand

LOADS = ("idle", "busy", "nice")

# By fault, within how many seconds the primary must be replaced. Who is stuck may be so for its bound, of which only time
# counts in which its JVM did not wait for a CPU; whose ledger is cut off bears it for as long as an outage is borne.
FAULTS = {
    "killed": 5.0,
    "stopped": 30.0,
    "regex": 30.0,
    "asleep": 30.0,
    "cut": 60.0,
    "deadlock": 6 * limits.STUCK_MS_MIN / 1000,
    "jvm": 6 * limits.STUCK_MS_MIN / 1000,
}


def within_s(load: str, fault: str) -> float:
    """Who burns a CPU and gets next to none is told from who is starved by the clock alone."""
    return limits.LEASE_WALL_MS_MAX / 1000 + 5 if (load, fault) == ("nice", "regex") else FAULTS[fault]


@dataclass(frozen=True)
class Cell:
    """What came of one fault under one load."""

    load: str
    fault: str
    ok: bool
    said: str

    def __str__(self) -> str:
        return f"{self.load:6s} {self.fault:9s} {'ok  ' if self.ok else 'FAIL'} {self.said}"


class Matrix:
    """One run of the flow under one load."""

    def __init__(
        self,
        home: Path,
        load: str,
        rule: str | None = None,
        native: bool = False,
        rehearsals: int = limits.REHEARSALS_TO_BE_WARM,
    ) -> None:
        self.load = load
        self.rehearsals = rehearsals  # of a standby, before anything befalls the primary
        self.stand = Stand(home)
        self.ill = home / "ill"
        self.ill.mkdir()
        self.fallen: set[str] = set()  # workers that something has befallen
        os.environ["ILL_DIR"] = str(self.ill)
        os.environ.pop("ILL_NATIVE", None)
        if native:
            os.environ["ILL_NATIVE"] = "1"
        self.stand.feed(20)
        before = ["nice", "-n", "19"] if load == "nice" else []
        planted = (
            [sys.executable, str(Path(__file__).with_name("planted_rules.py")), rule]
            if rule
            else [str(HOLDFAST)]
        )
        self.guard = Guard(self.stand, "warm", command=[*before, *planted])

    def loaded(self) -> AbstractContextManager[None]:
        """The load, for as long as it is wanted."""
        number = {"idle": 0, "busy": 24, "nice": os.cpu_count() or 1}[self.load]
        return busy(number) if number else nullcontext()

    def healthy(self, seconds: float) -> Cell:
        """Nobody is replaced, and epochs go on."""
        self.settle()
        before, head = self.failovers(), self.stand.head()
        until = time.monotonic() + seconds
        with self.loaded():
            # A machine may be so full that an epoch takes longer than a short cell: that is slow, and not wrong.
            while time.monotonic() < until or (self.stand.head() == head and time.monotonic() < until + 120):
                self.feed()
                time.sleep(0.5)
        new, epochs = self.failovers()[len(before) :], self.stand.head() - head
        return Cell(
            self.load, "healthy", not new and epochs > 0, f"{epochs} epochs in {seconds:.0f} s {new or ''}"
        )

    def replaced(self, fault: str) -> Cell:
        """The primary falls ill, and another goes on."""
        self.settle()
        before, primary = self.failovers(), self.guard.primary()["worker"]
        with self.loaded():
            began = time.time()
            self.befall(fault)
            until = time.monotonic() + within_s(self.load, fault) + 60
            while len(self.failovers()) == len(before) and time.monotonic() < until:
                self.feed()
                time.sleep(0.05)
        new = self.failovers()[len(before) :]
        if not new:
            return Cell(
                self.load,
                fault,
                False,
                f"{primary} was not replaced in {within_s(self.load, fault) + 60:.0f} s",
            )
        seconds = new[0][0] / 1000 - began
        return Cell(self.load, fault, seconds <= within_s(self.load, fault), f"{seconds:.1f} s: {new[0][1]}")

    def befall(self, fault: str) -> None:
        """Have a fault befall the primary."""
        primary = self.guard.primary()
        pid, worker = self.guard.pid(primary), primary["worker"]
        self.fallen.add(worker)
        if fault in ("killed", "stopped"):
            os.kill(pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        elif fault == "jvm":
            for one in kin(Process(**primary["process"]), worker):
                if Path(f"/proc/{one}/exe").resolve().name == "java":
                    os.kill(one, signal.SIGSTOP)
        else:
            (self.ill / f"{worker}.{fault}").touch()

    def settle(self) -> None:
        """Wait until somebody stands by who is warm, and epochs go on."""
        self.guard.wait_for_head(0)
        self.feed()
        self.guard.wait_for_standby(self.rehearsals, but=self.fallen)
        # All that was fed before may have been read by now.
        head = self.stand.head()
        self.feed()
        self.guard.wait_for_head(head + 1)

    def feed(self) -> None:
        """There is always something to do."""
        if self.stand.files - self.stand.processed("stage:unique", "source:rows") < 10:
            self.stand.feed(10)

    def failovers(self) -> list[tuple[int, str]]:
        """When, and why."""
        return [
            (at, why)
            for at, why in self.stand.read(
                "select at_ms, reason from events where kind = 'failover' order by seq"
            )
        ]


def run(load: str, faults: list[str], healthy_s: float, rule: str | None, native: bool) -> list[Cell]:
    """All cells of one load; one that cannot even begin is a failure."""
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory(prefix="matrix-", ignore_cleanup_errors=True) as home:
        matrix = Matrix(Path(home), load, rule, native)
        try:
            for fault in faults:
                try:
                    cells.append(matrix.healthy(healthy_s) if fault == "healthy" else matrix.replaced(fault))
                except AssertionError as error:
                    cells.append(Cell(load, fault, False, str(error)[:300]))
                print(cells[-1], flush=True)
            status, said = matrix.guard.stop()
            if status != 0:
                cells.append(Cell(load, "stop", False, said[-300:]))
        finally:
            matrix.guard.close()
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--faults", default=",".join(["healthy", *FAULTS]))
    parser.add_argument("--healthy", type=float, default=float(os.environ.get("MATRIX_HEALTHY_S", "300")))
    parser.add_argument("--rule")
    parser.add_argument("--native", action="store_true")
    given = parser.parse_args()
    cells = [
        cell
        for load in given.loads.split(",")
        for cell in run(load, given.faults.split(","), given.healthy, given.rule, given.native)
    ]
    print("\n" + "\n".join(map(str, cells)))
    return 0 if all(cell.ok for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
