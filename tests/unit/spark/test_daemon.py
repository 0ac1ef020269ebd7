"""Where Spark's Python workers look for PySpark."""

from __future__ import annotations

from holdfast.spark.daemon import without_archives


def test_archives_of_an_installed_package_are_left_out_and_others_kept() -> None:
    site, other = "/venv/site-packages", "/opt/spark/python/lib/pyspark.zip"
    archives = [f"{site}/pyspark/python/lib/{name}" for name in ("pyspark.zip", "py4j-0.10-src.zip")]
    assert without_archives([*archives, other, "/jobs/mine.zip", site]) == [other, "/jobs/mine.zip", site]


def test_archives_stay_where_the_package_is_not_looked_for() -> None:
    """A Spark of the user's own: its archives are the only place where its PySpark is."""
    archives = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-0.10-src.zip"]
    assert without_archives([*archives, "/venv/site-packages"]) == [*archives, "/venv/site-packages"]
