"""What `scripts/services` does without a server."""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Timer

import pytest

from serving import place


def test_a_port_that_its_server_has_yet_to_let_go_of_is_waited_for(tmp_path: Path) -> None:
    """The last thread of a server that was killed may hold its port when its process counts as ended already."""
    known = place.port(tmp_path / "port")
    holder = socket.create_server(("127.0.0.1", known))
    Timer(0.3, holder.close).start()
    assert place.port(tmp_path / "port") == known


def test_a_port_that_something_else_has_taken_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "FREE_S_MAX", 0.1)
    known = place.port(tmp_path / "port")
    with socket.create_server(("127.0.0.1", known)):
        assert place.port(tmp_path / "port") != known
