"""How many tasks a session is counted on to run at once, by what it answers and how it is set."""

from __future__ import annotations

import pytest

from holdfast.core import limits
from holdfast.core.errors import PlanError
from holdfast.spark.cores import Cores, cores


class Session:
    """What is asked of a session: its settings, and the plan of a range."""

    def __init__(self, splits: int, **settings: str) -> None:
        self.told = f"== Physical Plan ==\n*(1) Range (0, 1, step=1, splits={splits})\n"
        self.settings = {"spark." + key.replace("_", "."): value for key, value in settings.items()}
        self.conf = self

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.settings.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value

    def sql(self, _: str) -> Session:
        return self

    def collect(self) -> list[list[str]]:
        return [[self.told]]


def test_a_task_of_several_cores_counts_them() -> None:
    assert cores(Session(8, task_cpus="3")) == 2
    assert cores(Session(2, task_cpus="4")) == 1


def test_executors_that_come_by_demand_are_counted_before_they_are_there() -> None:
    """Two tasks, because two cores are there, would never make Spark ask for a third."""
    assert cores(Session(2, dynamicAllocation_enabled="true", dynamicAllocation_maxExecutors="10")) == 10
    unbounded = Session(2, dynamicAllocation_enabled="true", executor_cores="4")
    assert cores(unbounded) == 4 * limits.EXECUTORS_BY_DEMAND


def test_executors_that_register_later_are_seen_from_time_to_time() -> None:
    now = [0.0]
    session = Session(2, master="spark://head:7077")
    found = Cores(session, clock=lambda: now[0])
    assert (found.count, session.get("spark.sql.shuffle.partitions")) == (2, "2")
    session.told = session.told.replace("splits=2", "splits=40")
    found.look()
    assert found.count == 2, "asked again at once"
    now[0] += limits.CORES_LOOK_MS / 1000
    found.look()
    assert (found.count, session.get("spark.sql.shuffle.partitions")) == (40, "40")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[2,4]", "local[*]"])
def test_cores_of_this_process_are_asked_for_once(master: str) -> None:
    now = [0.0]
    session = Session(2, master=master)
    found = Cores(session, clock=lambda: now[0])
    session.told, now[0] = "nothing", 1e9
    found.look()
    assert found.count == 2


def test_a_number_of_tasks_that_is_asked_for_is_not_second_guessed() -> None:
    session = Session(40, master="spark://head:7077")
    session.told = "nothing"
    assert Cores(session, 3).count == 3
    assert session.get("spark.sql.shuffle.partitions") == "3"


def test_a_session_that_does_not_say_is_told_what_to_do() -> None:
    session = Session(2)
    session.told = "nothing"
    with pytest.raises(PlanError, match="how many tasks") as error:
        cores(session)
    assert "--tasks" in error.value.hint
