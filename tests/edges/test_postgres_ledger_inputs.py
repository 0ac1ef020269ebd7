"""What tests/unit/ledger/test_inputs.py says of the ledger holds in PostgreSQL too."""

from __future__ import annotations

import pytest

from postgres_ledger import ledger_in_postgres, ledgers  # noqa: F401
from unit.ledger.test_inputs import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("ledger_in_postgres")
