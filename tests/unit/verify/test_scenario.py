"""Which runs a campaign makes, and that a seed makes the same ones again."""

from __future__ import annotations

import pytest

from holdfast.core.crashpoints import POINTS
from holdfast.verify.scenario import (
    FAULTS,
    IN_TASKS,
    ONLY_SUPERVISED,
    SUPERVISED,
    Scenario,
    pairs,
    scenarios,
    supervised_scenarios,
)

OFTEN = dict.fromkeys(POINTS, 8)


def written(fault: str, seed: int = 1, reached: dict[str, int] = OFTEN) -> list[Scenario]:
    return list(scenarios("gap", (fault,), reached, OFTEN, seed))


def under_a_supervisor(fault: str, reached: dict[str, int] = OFTEN) -> list[Scenario]:
    return list(supervised_scenarios("no_sync", (fault,), reached, OFTEN, 1))


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ONLY_SUPERVISED])
def test_every_fault_has_a_run_of_its_own_and_a_seed_gives_the_same_again(fault: str) -> None:
    found = written(fault)
    assert found
    assert written(fault) == found
    assert len({scenario.name for scenario in found}) == len(found)
    assert all(scenario.policy == "gap" and scenario.fault == fault for scenario in found)


def test_processes_and_workers_are_killed_at_every_point_between_them() -> None:
    points = [scenario.point for fault in ("kill", "worker") for scenario in written(fault)]
    assert sorted(str(point) for point in points) == sorted(POINTS)
    assert {scenario.point for scenario in written("worker")} == IN_TASKS


def test_seeds_choose_other_occurrences() -> None:
    (at,) = {
        len({s.steps for seed in range(9) for s in written("zombie", seed) if s.point == "commit.before"})
    }
    assert at > 1


def test_a_point_that_only_the_start_reaches_is_tried_from_the_start() -> None:
    (run,) = [s for s in written("kill", reached={**OFTEN, "merge.before": 0}) if s.point == "merge.before"]
    assert run.afresh


def test_a_point_that_is_never_reached_in_peace_is_not_waited_for() -> None:
    never = dict.fromkeys(("lease.before_renew", "recover.before"), 0)
    found = scenarios("gap", ("kill",), {**OFTEN, **never}, {**OFTEN, **never}, 1)
    steps = {scenario.point: scenario.steps for scenario in found}
    assert steps["lease.before_renew"] == ()
    assert steps["recover.before"], "reached only after something went wrong"


def test_recovery_and_repair_are_reached_by_something_that_goes_wrong_before() -> None:
    runs = {scenario.point: scenario.steps for scenario in written("kill")}
    assert [step.crash.partition(":")[0] for step in runs["recover.before"]] == [
        "commit.before",
        "recover.before",
    ]
    assert runs["repair.before_commit"][1].damage == "missing"


def test_pairs_are_two_deaths_of_the_seeds_choice() -> None:
    found = list(pairs("gap", 20, OFTEN, 1))
    assert found == list(pairs("gap", 20, OFTEN, 1))
    assert found != list(pairs("gap", 20, OFTEN, 2))
    assert {len(scenario.steps) for scenario in found} == {2}
    assert not {scenario.steps[0].crash.partition(":")[0] for scenario in found} & IN_TASKS
    assert list(pairs("gap", 20, {}, 1)) == []


@pytest.mark.parametrize("fault", SUPERVISED)
def test_every_fault_of_supervised_runs_has_one_in_which_orders_hold_from_the_start(fault: str) -> None:
    found = under_a_supervisor(fault)
    assert found
    assert len({scenario.name for scenario in found}) == len(found)
    assert all(
        scenario.supervised and len(scenario.steps) == 1 and scenario.steps[0].crash for scenario in found
    )


@pytest.mark.parametrize("fault", ONLY_SUPERVISED)
def test_what_takes_standbys_has_no_run_without(fault: str) -> None:
    assert written(fault) == []


def test_under_a_supervisor_processes_and_workers_are_killed_at_every_point_between_them() -> None:
    points = [scenario.point for fault in ("kill", "worker") for scenario in under_a_supervisor(fault)]
    assert sorted(str(point) for point in points) == sorted(POINTS)


def test_who_does_something_about_a_death_dies_where_a_leader_died_before() -> None:
    steps = {scenario.point: scenario.steps[0] for scenario in under_a_supervisor("kill")}
    after_a_death = {point for point, step in steps.items() if step.leader_dies}
    assert after_a_death == {"failover.after_fence", "recover.before", "recover.before_commit"}
    assert all(steps[point].crash == f"{point}:1:kill" for point in after_a_death)


def test_the_lease_of_the_one_that_leads_and_that_of_a_standby_are_two_runs() -> None:
    (leads,) = [s for s in under_a_supervisor("kill") if s.point == "lease.before_renew"]
    (stands_by,) = under_a_supervisor("standby")
    assert [run.steps[0].victims for run in (leads, stands_by)] == ["first", "others"]


def test_two_die_at_once_where_one_stands_still_and_nobody_watches_where_the_supervisor_dies() -> None:
    assert all(
        run.steps[0].fellow_dies and run.steps[0].crash.endswith(":stop")
        for run in under_a_supervisor("both")
    )
    assert all(run.steps[0].unwatched for run in under_a_supervisor("supervisor"))


def test_pairs_under_a_supervisor_are_ordered_at_once() -> None:
    found = list(pairs("no_sync", 20, OFTEN, 1, supervised=True))
    assert {len(scenario.steps) for scenario in found} == {1}
    assert all(len(scenario.steps[0].crash.split(",")) == 2 for scenario in found)
