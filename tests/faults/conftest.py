"""The stage is set once for all tests of faults."""

from __future__ import annotations

import pytest

from tests.faults.stage import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("stage"))
