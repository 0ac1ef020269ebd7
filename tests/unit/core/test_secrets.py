"""What is hidden in texts, and how a child is told what nobody else is to read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.core.secrets import sealed, unnamed_file, without_secrets
from holdfast.runtime.failure import facts_of
from holdfast.runtime.worker_spec import WorkerSpec

CONF = {"spark.hadoop.fs.s3a.secret.key": "hushhush", "spark.x": "shown"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:pass@host/db", "postgresql://me:***@host/db"),
        ("sc://host/;token=pass;user_id=me", "sc://host/;token=***;user_id=me"),
        ("jdbc:postgresql://host/db?user=me&password=pass", "jdbc:postgresql://host/db?user=me&password=***"),
        ("https://host/?X-Token=pass", "https://host/?X-Token=pass".replace("pass", "***")),
        ("password=os.environ[name]", "password=os.environ[name]"),
    ],
)
def test_passwords_of_addresses_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_only_values_that_could_be_secrets_are_hidden() -> None:
    settings = {"spark.ssl.keyStore.enabled": "true", "a.token": "7", "b.token": "abc", "c.name": "main"}
    assert without_secrets("true 7 abc main", settings.items()) == "true 7 *** main"


def test_an_error_is_told_without_secrets_in_any_of_its_parts() -> None:
    try:
        raise ValueError("cannot open jdbc://me:pass@host with hushhush")
    except ValueError as error:
        facts = facts_of(error, CONF.items())
    assert facts["message"] == "cannot open jdbc://me:***@host with ***"
    assert "jdbc://me:***@host with ***" in facts["traceback"]
    assert "hushhush" not in str(facts)


def test_the_ledger_knows_of_settings_only_whether_they_have_changed() -> None:
    spec = WorkerSpec("flow.py", "work", "", "", master="sc://host/;token=pass", conf=CONF)
    first = spec.recorded(None)
    assert first["conf"] == sorted(CONF)
    assert first["master"] == "sc://host/;token=***"
    assert not any(secret in str(first) for secret in ("hushhush", "shown", "pass"))
    assert spec.recorded(first) == first
    assert WorkerSpec(**{**vars(spec), "conf": {**CONF, "spark.x": "other"}}).recorded(first) != first
    assert WorkerSpec(**{**vars(spec), "master": "sc://host/;token=other"}).recorded(first) != first


def test_a_worker_is_told_everything_and_its_representation_tells_nothing() -> None:
    spec = WorkerSpec("flow.py", "work", "main-1", "main", master="sc://host/;token=pass", conf=CONF)
    assert WorkerSpec.from_json(spec.to_json()) == spec
    assert "hushhush" not in repr(spec)
    assert "pass" not in repr(spec)


def test_a_child_reads_more_than_a_pipe_takes_from_a_file_without_a_name() -> None:
    text = "é" * 1_000_000
    with unnamed_file(text) as fd:
        child = [sys.executable, "-c", "import sys; print(len(sys.stdin.buffer.read()))"]
        done = subprocess.run(child, stdin=fd, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 2_000_000


def test_seals_of_one_text_differ_by_their_salt() -> None:
    assert sealed("abc") != sealed("abc")
