"""Plans a flow in a short-lived process, for a supervisor that must import neither pyspark nor the user's file.

`python -m holdfast.runtime.describe REQUEST` prints one line of JSON: the plan, or the error. The request is JSON too: `flow`,
and `workers` and `work_dir` if they were given.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow import columns
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan as cut
from holdfast.flow.policies import Standby
from holdfast.ledger.location import is_work_directory
from holdfast.runtime import early
from holdfast.runtime.failure import facts_of
from holdfast.runtime.flow import Flow
from holdfast.runtime.loader import load


def describe(reference: str, workers: int | None, work_dir: str | None) -> Json:
    """What a supervisor needs to know of a flow, if nothing speaks against starting its workers."""
    flow = load(reference)
    if not isinstance(flow, Flow):
        raise PlanError(
            f"{reference} is a description without run()", operation="plan", hint="Make it with hf.Flow."
        )
    plan = cut(flow)
    columns.check(plan)
    root = Path(work_dir or Path("work") / plan.name)
    # A work directory that has a ledger knows which files were read: there, the workers look at them.
    if not is_work_directory(root):
        early.check_first_run(plan, root)
    return described(plan.spread(workers) if workers else plan)


def described(plan: FlowPlan) -> Json:
    """The same of a flow that is cut already."""
    return {
        "flow": plan.name,
        "trigger_us": plan.trigger_us,
        "survives": plan.survives,
        "groups": [
            {
                "name": group.name,
                "stages": list(group.stages),
                "members": max(policy.members for policy in plan.policies_of(group)),
                "hot": any(policy.standby is Standby.HOT for policy in plan.policies_of(group)),
            }
            for group in plan.groups
        ],
        "stages": {
            stage.name: {"fingerprint": stage.fingerprint(), "policy": stage.policy.name}
            for stage in plan.stages
        },
    }


def main(request: Json) -> Json:
    """The plan or the error."""
    try:
        with redirect_stdout(sys.stderr):
            return {"plan": describe(request["flow"], request.get("workers"), request.get("work_dir"))}
    except Exception as error:
        return {"error": facts_of(error)}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
