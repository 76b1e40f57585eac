"""Where `--implementation` names what to check, the plug-in collects the vectors, and not the test file here."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = config.getoption("implementation", None)
    return True if asked and collection_path.name == "test_conformance.py" else None
