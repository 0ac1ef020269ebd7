"""Names in databases that are Holdfast's own: no sink may write there. Whoever adds one adds it here."""

from __future__ import annotations

# Beside the tables that sinks write to: what was published last.
RECORD_TABLE = "holdfast_sinks"

# Rows on their way: in PostgreSQL a schema, in SQLite a file that is attached under this name.
STAGING = "holdfast_staging"

# Indexes over the keys of tables; in PostgreSQL they share their names with tables.
KEY_INDEX_PREFIX = "holdfast_key_"

# Schemas of PostgreSQL that ledgers are in, each named after its flow. That of staging tables begins so too.
SCHEMA_PREFIX = "holdfast_"


def is_table_of_ours(name: str) -> bool:
    """Whether a table, an index or an attached file of ours is called so, in upper or lower case."""
    folded = name.lower()
    return folded in (RECORD_TABLE, STAGING) or folded.startswith(KEY_INDEX_PREFIX)


def is_schema_of_ours(name: str) -> bool:
    """Whether a schema holds the ledger of some flow, or staging tables."""
    return name.lower().startswith(SCHEMA_PREFIX)
