"""Pinned schemas of the operations that passes call, by package and version."""

from __future__ import annotations

import json
from pathlib import Path

PINNED: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "schemas.json").read_text())
