"""What tests/unit/ledger/test_holder.py says of the ledger holds in PostgreSQL too, but for files and lasting locks."""

from __future__ import annotations

import pytest

from postgres_ledger import ledger_in_postgres, ledgers  # noqa: F401
from unit.ledger.test_holder import (  # noqa: F401
    test_a_dead_holder_is_replaced_at_once,
    test_a_deposed_process_cannot_act_in_its_successors_name,
    test_a_holder_on_another_host_counts_as_living,
    test_a_living_holder_is_named_and_kept,
    test_a_newer_format_is_refused,
    test_events_are_bounded_in_number,
    test_taking_a_flow_closes_what_its_predecessor_had_under_way,
)

pytestmark = pytest.mark.usefixtures("ledger_in_postgres")
