"""Where jobs run: here and now, or on Ray. Ray reads its settings when it is imported, so they are made here."""

from __future__ import annotations

import os
from pathlib import Path

# Ray's first start leaves a token, and every cluster started on the same machine then demands it.
if Path("~/.ray/auth_token").expanduser().exists():
    os.environ.setdefault("RAY_AUTH_MODE", "token")
