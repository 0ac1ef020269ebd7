"""The steps of a stream that look at one row at a time, under the names that a person reaches for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.flow import enrichment, verbs

if TYPE_CHECKING:
    from holdfast.flow.endpoints import FilesSource
    from holdfast.flow.flow import FlowDescription, Stream
    from holdfast.flow.nodes import Transformation


class RowSteps:
    """What a stream does to its rows one by one."""

    if TYPE_CHECKING:
        flow: FlowDescription

        def transform(self, function: Transformation) -> Stream:
            """As the stream has it."""

    def where(self, condition: str) -> Stream:
        """Keep the rows for which a condition is true; `filter` is the same.

        - `condition`: Spark SQL, as text.

        Raises `hf.PlanError` if it is no text. Whether the columns are there is checked before the flow reads its first row.

        >>> import holdfast as hf
        >>> orders = hf.Flow("shop").source("orders", hf.rows([{"user": "x", "amount": 5}]))
        >>> large = orders.where("amount > 3 AND user IS NOT NULL")
        """
        return self.transform(verbs.where(condition))

    filter = where

    def select(self, *expressions: str, **named: str) -> Stream:
        """Go on with these columns only.

        - `expressions`: names of columns, `*` for all of them, or expressions in Spark SQL.
        - `named`: further expressions, by the names of their columns.

        Raises `hf.PlanError` if there is none, or one is no text.

        >>> import holdfast as hf
        >>> orders = hf.Flow("shop").source("orders", hf.rows([{"user": "x", "amount": 5, "qty": 2}]))
        >>> totals = orders.select("user", total="amount * qty")
        """
        return self.transform(verbs.select(expressions, named))

    def with_column(self, name: str, expression: str) -> Stream:
        """Add a column, or replace the one of that name.

        - `name`: of the column.
        - `expression`: Spark SQL, as text.

        Raises `hf.PlanError` if one of them is no text.
        """
        return self.transform(verbs.with_columns({name: expression}))

    def with_columns(self, columns: Mapping[str, str] = MappingProxyType({}), /, **named: str) -> Stream:
        """Add or replace several columns at once.

        - `columns`: expressions in Spark SQL by the names of their columns, as a dict. Each sees the columns that were there before.
        - `named`: the same, as arguments.

        Raises `hf.PlanError` if there is none, or one is no text.
        """
        return self.transform(verbs.with_columns({**columns, **named}))

    def drop(self, *columns: str) -> Stream:
        """Leave columns out.

        - `columns`: their names. One that is not there is an error, told before the flow reads its first row.

        Raises `hf.PlanError` if there is none, or one is named twice.
        """
        return self.transform(verbs.drop(columns))

    def rename(self, names: Mapping[str, str] = MappingProxyType({}), /, **named: str) -> Stream:
        """Give columns other names: `rename(old="new")`.

        - `names`: the new names by the old ones, as a dict. A column that is not there is an error, as for `stream.drop`.
        - `named`: the same, as arguments.

        Raises `hf.PlanError` if there is none, or a name is no text.
        """
        return self.transform(verbs.rename({**names, **named}))

    def enrich(
        self,
        table: FilesSource,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: str = "left",
        prefix: str = "",
        refresh: str | None = enrichment.REFRESH,
        name: str | None = None,
    ) -> Stream:
        """Add the columns of the row of a table that has the same key.

        An epoch is enriched with one version of the table. Its plan records the version, and the work directory keeps a copy, so
        a replay gives the same rows. Rows that have gone through keep what they were given.

        - `table`: `hf.files(path, schema=...)`, a directory of files that is read as a whole: at most 2,000,000 rows, each key once.
        - `on`: the key columns, a name or several; or a dict of the stream's columns to the table's.
        - `how`: `"left"`, the default, gives a row without a partner nulls; `"inner"` drops it. Null is nobody's partner.
        - `prefix`: what the names of the added columns begin with; nothing by default.
        - `refresh`: when an epoch is planned and the last look at the files is older than this, they are looked at again; by
          default `"1 minute"`. With `None` they are looked at once in a run.
        - `name`: what the table is called; by default the last part of its path.

        Raises `hf.PlanError` if the table is not of files with a schema, has options of a source, or another argument cannot be.

        >>> import holdfast as hf
        >>> orders = hf.Flow("shop").source("orders", hf.rows([{"country": "NL", "amount": 5}]))
        >>> countries = hf.files("countries/", schema="country string, name string")
        >>> named = orders.enrich(countries, on="country")
        """
        return self.transform(enrichment.enrich(self.flow.tables, table, on, how, prefix, refresh, name))
