"""`make prove`: is what is wrong found, and nothing that is right accused?

Every planted bug and every wrong flow or job must be caught, with the class named rightly; every correct one must pass the
same faults. Prints a table, and exits with 1 if anything is not so.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from holdfast.flow.planner import plan
from holdfast.runtime.loader import ship_module_by_value
from holdfast.verify.actor import Actor
from holdfast.verify.campaign import SERVER_SETTINGS, Wanted, verify_on
from holdfast.verify.outcome import Campaign
from holdfast.verify.plain.campaign import Job, verify_job
from holdfast.verify.server import connect_server
from prove import flows
from prove.bugs import BUGS, NO_VERDICT, Bug

JOBS = Path(__file__).parents[1] / "plain_jobs"
NOT_DETERMINISTIC = "not deterministic"


@dataclass(frozen=True)
class Case:
    """Something to be verified, and what should be said of it; nothing for what is correct."""

    name: str
    run: Callable[[Path], Campaign]
    seen_as: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Answer:
    """What was said of a case."""

    case: Case
    classes: frozenset[str]
    seconds: float

    @property
    def is_right(self) -> bool:
        return bool(self.classes & self.case.seen_as) if self.case.seen_as else not self.classes


def cases(address: str) -> Iterator[Case]:
    """All that is wrong, then all that is right."""
    for bug in BUGS:
        yield Case(bug.name, _planted(address, bug), bug.seen_as)
    for flow, seen_as in flows.WRONG.items():
        yield Case(f"sink or flow: {flow.__name__}", _flow(address, flow), frozenset(seen_as))
    for name, seen_as in WRONG_JOBS.items():
        yield Case(f"Spark job: {name}", _job(name), frozenset(seen_as))
    for flow in flows.CORRECT:
        yield Case(f"correct flow: {flow.__name__}", _flow(address, flow))
    for name in CORRECT_JOBS:
        yield Case(f"correct Spark job: {name}", _job(name))


WRONG_JOBS = {
    "append": {"rollback-repeating", "rollback-divergent"},
    "random_column": {NOT_DETERMINISTIC},
    "partition_key": {"rollback-divergent", "rollback-repeating"},
    "directory": {"rollback-repeating"},
}
CORRECT_JOBS = ("replace", "transaction", "files")


def main() -> int:
    console, answers = Console(), []
    with tempfile.TemporaryDirectory(prefix="holdfast-prove-") as directory:
        root = Path(directory)
        with connect_server(root, SERVER_SETTINGS) as address:
            chosen = [
                case
                for case in cases(address)
                if not sys.argv[1:] or any(w in case.name for w in sys.argv[1:])
            ]
            for number, case in enumerate(chosen):
                place = root / f"case-{number}"
                place.mkdir()
                campaign = Actor(lambda: case.run(place), root / f"case-{number}.log", bounded=False).wait()  # noqa: B023
                found = campaign.returned()
                assert isinstance(found, Campaign)
                answers.append(Answer(case, _classes(found), found.seconds))
                console.print(_line(answers[-1]))
    console.print(_table(answers))
    bugs = [answer for answer in answers if answer.case.seen_as]
    right = [answer for answer in answers if not answer.case.seen_as]
    console.print(
        f"{sum(a.is_right for a in bugs)} of {len(bugs)} planted bugs caught, "
        f"{sum(not a.is_right for a in right)} false alarms in {len(right)} correct flows and jobs"
    )
    return 0 if all(answer.is_right for answer in answers) else 1


def _planted(address: str, bug: Bug) -> Callable[[Path], Campaign]:
    def run(root: Path) -> Campaign:
        bug.plant()
        points = (bug.point,) if bug.point else ()
        return _verified(
            address, getattr(flows, bug.flow), root, (bug.policy,), (bug.fault,), points, bug.standbys
        )

    return run


def _flow(address: str, flow: Callable[[], object]) -> Callable[[Path], Campaign]:
    faults, points = ("kill", "zombie"), ("commit.before", "sink.after_publish")
    return lambda root: _verified(address, flow, root, ("as-written",), faults, points)


def _verified(
    address: str,
    make: Callable[[], object],
    root: Path,
    policies: tuple[str, ...],
    faults: tuple[str, ...],
    points: tuple[str, ...],
    standbys: int = 0,
) -> Campaign:
    flow = make()
    ship_module_by_value(flow)  # type: ignore[arg-type]
    wanted = Wanted(make.__name__, policies, faults, points, gate=make is flows.drawn, standbys=standbys)
    return verify_on(address, plan(flow), wanted, root)  # type: ignore[arg-type]


def _job(name: str) -> Callable[[Path], Campaign]:
    def run(root: Path) -> Campaign:
        source = root / "source"
        source.mkdir()
        for number in range(4):
            rows = range(number * 50, number * 50 + 50)
            pq.write_table(
                pa.table({"k": [n % 7 for n in rows], "v": list(rows)}), source / f"{number}.parquet"
            )
        return verify_job(Job(JOBS / f"{name}.py", source), root / "runs")

    return run


def _classes(campaign: Campaign) -> frozenset[str]:
    """What was said against it."""
    if not campaign.deterministic:
        return frozenset({NOT_DETERMINISTIC})
    found = [run.observed.value if run.observed else NO_VERDICT for run in campaign.violations]
    return frozenset(found if campaign.reached else ["nothing was reached"])


def _line(answer: Answer) -> str:
    said = ", ".join(sorted(answer.classes)) or "nothing"
    return f"{'right' if answer.is_right else 'WRONG':6}{answer.seconds:6.1f} s  {answer.case.name}: {said}"


def _table(answers: list[Answer]) -> Table:
    table = Table("", "case", "said against it", "should be", "s")
    for answer in answers:
        said, should = (
            ", ".join(sorted(names)) or "nothing" for names in (answer.classes, answer.case.seen_as)
        )
        table.add_row(
            "" if answer.is_right else "WRONG", answer.case.name, said, should, f"{answer.seconds:.0f}"
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
