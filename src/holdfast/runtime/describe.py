"""Plans a flow in a short-lived process, for a supervisor that must import neither pyspark nor the user's file.

`python -m holdfast.runtime.describe FLOW [WORKERS]` prints one line of JSON: the plan, or the error.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout

from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.planner import plan as cut
from holdfast.flow.policies import Standby
from holdfast.runtime.failure import facts_of
from holdfast.runtime.flow import Flow
from holdfast.runtime.loader import load


def describe(reference: str, workers: int | None) -> Json:
    """What a supervisor needs to know of a flow."""
    flow = load(reference)
    if not isinstance(flow, Flow):
        raise PlanError(
            f"{reference} is a description without run()", operation="plan", hint="Make it with hf.Flow."
        )
    plan = cut(flow)
    plan = plan.spread(workers) if workers else plan
    return {
        "flow": plan.name,
        "trigger_us": plan.trigger_us,
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


def main(reference: str, workers: int | None) -> Json:
    """The plan or the error."""
    try:
        with redirect_stdout(sys.stderr):
            return {"plan": describe(reference, workers)}
    except Exception as error:
        return {"error": facts_of(error)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)))
