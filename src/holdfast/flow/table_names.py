"""Names of tables as `hf.table` is given them, and which of them are Holdfast's own."""

from __future__ import annotations

import re

from holdfast.core import reserved
from holdfast.core.errors import PlanError

# "schema.table", where either part may be quoted, as in SQL, if there is a dot in it.
_PART = r'"(?:[^"]|"")+"|[^.]+'
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})", re.DOTALL)


def in_postgres(name: str) -> tuple[str | None, str]:
    """The schema, if one is named, and the table.

    >>> in_postgres('shop."daily.totals"')
    ('shop', 'daily.totals')
    """
    found = _NAME.fullmatch(name)
    if not found:
        raise PlanError(
            f"{name!r} names no table",
            operation="plan",
            hint='Write "table" or "schema.table", and a part that has a dot in it in double quotes.',
        )
    schema, table = (part and _unquoted(part) for part in found.groups())
    return schema, str(table)


def check(name: str, backend: str) -> None:
    """Refuse what names no table, and what names one of ours."""
    if not name or "\0" in name:
        raise PlanError(f"{name!r} cannot name a table", operation="table")
    schema, table = in_postgres(name) if backend == "postgresql" else (None, name)
    if reserved.is_table_of_ours(table):
        raise PlanError(
            f"the table {table!r} is Holdfast's own, which says there what its sinks have published",
            operation="table",
            hint="Give the table another name.",
        )
    if schema is not None and reserved.is_schema_of_ours(schema):
        raise PlanError(
            f"schemas whose names begin with {reserved.SCHEMA_PREFIX!r}, such as {schema!r}, are Holdfast's own: "
            "ledgers of flows, and rows on their way",
            operation="table",
            hint="Put the table into another schema.",
        )


def _unquoted(part: str) -> str:
    is_quoted = len(part) > 2 and part.startswith('"') and part.endswith('"')
    return part[1:-1].replace('""', '"') if is_quoted else part
