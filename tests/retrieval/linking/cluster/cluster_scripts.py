"""How scripts of these tests are run: in processes of their own, as what Ray warns of is an error here."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[4]


def script_environment(home: Path) -> dict[str, str]:
    """Return the environment of a script and of what it starts; Ray writes its token into `home`."""
    return {
        **os.environ,
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",  # as of a cluster that `ray.init` starts; who joins one must say so
        "RAY_USAGE_STATS_ENABLED": "0",
    }
