"""An explanation tells every policy apart: what it writes, and what happens after a failure."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.flow.explain import explain
from holdfast.flow.planner import plan
from holdfast.flow.policies import Policy


def recovery(policy: Policy) -> dict:
    flow = hf.Flow("f", guarantee="at_most_once", survives="process", recover=policy)
    flow.source("in", hf.files("in/", schema="k long")).to(hf.discard())
    return explain(plan(flow))["stages"][0]["recovery"]


@pytest.mark.parametrize(
    ("policy", "persisted", "after_failure"),
    [
        (hf.gap(), "nothing", "start with empty state at the newest input"),
        (hf.upstream_backup(), "the input, until", "replay the retained input"),
        (hf.passive_standby(), "the layers of every epoch, as a delta", "goes on from its last delta"),
        (hf.passive_standby(every=5), "of every 5 epochs together", "goes on from its last delta"),
        (hf.active_standby(), "carried to disk behind the commit", "nothing to do"),
        (
            hf.strong_production(),
            "durable before its commit",
            "resume at the last commit, with all its files",
        ),
        (hf.no_sync(), "carried to disk behind the commit", "files that are lost are made again"),
        (
            hf.no_sync(("memory",)),
            "outlive the process and not a power loss",
            "files that are lost are made again",
        ),
    ],
)
def test_every_policy_says_what_it_does(policy: Policy, persisted: str, after_failure: str) -> None:
    found = recovery(policy)
    assert found["policy"] == policy.name
    assert persisted in found["persisted"]
    assert after_failure in found["after_failure"]
    assert found["class"] == ("gap" if policy.name == "gap" else "precise")


def test_what_has_no_meaning_under_a_policy_is_left_open() -> None:
    assert recovery(hf.no_sync())["every"] is None
    assert recovery(hf.no_sync(members=2))["lockstep"] is None
    assert recovery(hf.passive_standby(every=5))["every"] == 5
    assert recovery(hf.active_standby(lockstep=True))["lockstep"] is True


def test_the_replica_and_its_tier_are_shown() -> None:
    flow = hf.Flow("f", survives="machine", replica="copy/")
    flow.source("in", hf.files("in/", schema="k long")).to(hf.discard())
    found = explain(plan(flow))
    assert found["replica"] == "copy/"
    assert found["sources"][0]["rereadable"] is True
    assert "carried to disk and replica" in found["stages"][0]["recovery"]["persisted"]


def test_the_trigger_is_shown_and_changes_no_stage() -> None:
    found = []
    for trigger in (None, "90 seconds"):
        flow = hf.Flow("f", trigger=trigger)
        flow.source("in", hf.files("in/", schema="k long")).to(hf.discard())
        found.append(explain(plan(flow)))
    plain, batched = found
    assert (plain["trigger"], batched["trigger"]) == (None, "1 minute 30 seconds")
    assert plain["stages"] == batched["stages"]
