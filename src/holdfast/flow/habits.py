"""What a person with the habits of PySpark reaches for on a stream, and what it is called here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# By the name of a DataFrame's or a streaming writer's method: what to say instead.
INSTEAD = {
    "agg": "group_by().agg(n=hf.count()) for the total over all rows",
    "alias": "rename(old='new'); the two sides of a join get suffixes=",
    "cache": "nothing: the rows of an epoch are read once",
    "collect": '.to(hf.foreach(function)), or .to(hf.parquet("out/")) and read the files',
    "count": "group_by().agg(n=hf.count())",
    "crossJoin": "join(right, on=..., time=..., within=...): streams are joined by a key within a span of time",
    "distinct": "dedup(*ids, time=..., within=...)",
    "dropDuplicates": "dedup(*ids, time=..., within=...)",
    "dropDuplicatesWithinWatermark": "dedup(*ids, time=..., within=...)",
    "drop_duplicates": "dedup(*ids, time=..., within=...)",
    "dropna": 'where("column is not null")',
    "exceptAll": 'join(right, on=..., time=..., within=..., how="anti")',
    "explode": 'select("*", "explode(items) AS item")',
    "fillna": 'with_column(name, "coalesce(name, 0)")',
    "foreachBatch": ".to(hf.foreach(function))",
    "groupBy": "group_by(*keys)",
    "groupby": "group_by(*keys)",
    "intersect": 'join(right, on=..., time=..., within=..., how="semi")',
    "intersectAll": 'join(right, on=..., time=..., within=..., how="semi")',
    "limit": "nothing: a stream has no end; max_rows_per_epoch= of a source bounds an epoch",
    "mapInArrow": "transform(lambda df: df.mapInArrow(function, schema))",
    "mapInPandas": "transform(lambda df: df.mapInPandas(function, schema))",
    "orderBy": "nothing: a stream has no order; hf.max, hf.first and hf.last choose by a column",
    "persist": "nothing: the rows of an epoch are read once",
    "printSchema": "`holdfast explain FLOW`",
    "repartition": "nothing: rows go to tasks by key; `holdfast run --tasks` says how many there are",
    "selectExpr": "select(*expressions)",
    "show": '.to(hf.foreach(function)), or .to(hf.parquet("out/")) and read the files',
    "sort": "nothing: a stream has no order; hf.max, hf.first and hf.last choose by a column",
    "start": ".to(sink), then flow.run(...) or `holdfast run FLOW`",
    "subtract": 'join(right, on=..., time=..., within=..., how="anti")',
    "toDF": "rename(old='new')",
    "trigger": 'hf.Flow(name, trigger="10 seconds") for processingTime, run(until_idle=True) for availableNow',
    "unionAll": "union(*others)",
    "unionByName": "union(*others), which matches columns by name",
    "withColumn": "with_column(name, expression)",
    "withColumnRenamed": "rename(old='new')",
    "withColumns": "with_columns(name=expression)",
    "withColumnsRenamed": "rename({'old': 'new'})",
    "withWatermark": "late= of a window, within= of a dedup: each step says how long it waits",
    "write": '.to(hf.parquet("out/")), .to(hf.table(...)) or another sink',
    "writeStream": '.to(hf.parquet("out/")), .to(hf.table(...)) or another sink',
    "writeTo": ".to(hf.table(...)), .to(hf.iceberg(...)) or another sink",
}

# By the name of a function of pyspark.sql.functions: what to say instead.
FUNCTIONS_INSTEAD = {
    "approxCountDistinct": "hf.approx_distinct(x)",
    "approx_count_distinct": "hf.approx_distinct(x)",
    "approx_percentile": "hf.percentile(x, p, error=0.01)",
    "array_agg": "hf.collect_list(x), or hf.collect_list(x, by=t) in the order of t",
    "bool_and": 'hf.min("condition")',
    "bool_or": 'hf.max("condition")',
    "col": 'text: expressions are Spark SQL, as in hf.sum("amount * qty")',
    "countDistinct": "hf.count_distinct(x, ...)",
    "count_if": 'hf.count("case when condition then 1 end")',
    "every": 'hf.min("condition")',
    "expr": 'text: expressions are Spark SQL, as in hf.sum("amount * qty")',
    "first_value": "hf.first(x, by=t)",
    "last_value": "hf.last(x, by=t)",
    "listagg": 'hf.collect_list(x, by=t), then with_column("text", "array_join(items, \',\')")',
    "lit": 'text: expressions are Spark SQL, as in with_column("one", "1")',
    "max_by": "hf.last(x, by=t), or hf.top_k(x, k, by=t) for several",
    "mean": "hf.avg(x)",
    "median": "hf.percentile(x, 0.5)",
    "min_by": "hf.first(x, by=t), or hf.top_k(x, k, by=t, smallest=True) for several",
    "percentile_approx": "hf.percentile(x, p, error=0.01)",
    "some": 'hf.max("condition")',
    "std": "hf.stddev(x)",
    "stddev_samp": "hf.stddev(x)",
    "string_agg": 'hf.collect_list(x, by=t), then with_column("text", "array_join(items, \',\')")',
    "sum_distinct": "dedup(...) before it, then hf.sum(x)",
    "var_samp": "hf.variance(x)",
    "window": '.group_by(...).window("ts", tumbling="10 minutes")',
    "session_window": '.group_by(...).window("ts", session="10 minutes")',
}


def unknown_function(name: str, known: Iterable[str]) -> str:
    """What is said to a person who asks the package for something that it does not have."""
    said = f"module 'holdfast' has no attribute {name!r}"
    if name in FUNCTIONS_INSTEAD:
        return f"{said}; here it is {FUNCTIONS_INSTEAD[name]}"
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"{said}; did you mean {near[0]!r}?" if near else said


def unknown_method(name: str, known: Iterable[str]) -> str:
    """What is said to a person who asks a stream for something that it does not have."""
    said = f"a stream has no {name!r}"
    if name in INSTEAD:
        return f"{said}; here it is {INSTEAD[name]}"
    near = difflib.get_close_matches(name, [one for one in known if not one.startswith("_")], n=1)
    if near:
        return f"{said}; did you mean {near[0]!r}?"
    return f"{said}; any step on DataFrames can be had with .transform(lambda df: ...)"
