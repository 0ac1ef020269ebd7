"""A stage in a ledger, for tests that need no flow."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.json import Json
from holdfast.flow.on_stage import OLDEST
from holdfast.ledger import stages
from holdfast.ledger.ledger import Ledger


def register_stage(
    ledger: Ledger,
    generation: int,
    stage: str,
    state_schema: Json | None,
    inputs: Sequence[str],
    view: Json | None = None,
    read_from: str = OLDEST,
) -> None:
    """What a worker does for all of its stages when it begins to lead, for one."""
    with ledger.write(generation) as tx:
        stages.register(tx, generation, stage, state_schema, inputs, view, read_from)
