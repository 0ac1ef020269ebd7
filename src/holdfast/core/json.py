"""The type of a JSON object, as the ledger and the manifests store it."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
