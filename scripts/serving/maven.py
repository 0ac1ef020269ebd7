"""Jars from Maven, kept in the checkout for every instance, under a name that follows from their pom."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from serving import place


def fetch(pom: Path, name: str) -> Path:
    """The directory with the jars that a pom asks for."""
    mark = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    jars = place.HOME / name / "lib" / mark
    if jars.exists():
        return jars
    if not shutil.which("mvn"):
        place.install("maven", "no mvn")
    partial = jars.with_name(f"{mark}.{os.getpid()}")
    try:
        place.run(
            "mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime",
            f"-DoutputDirectory={partial}", what="mvn",
        )  # fmt: skip
        if not jars.exists():
            partial.rename(jars)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return jars
