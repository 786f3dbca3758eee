"""The pytest plugin: the fixture ``served``.

To be named in ``conftest.py``, ``pytest_plugins = ["turnstream.testing.plugin"]``. It is no entry point, which would load it in every
run of pytest of the environment, also where nothing of it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnstream.testing import Served


@pytest.fixture
def agents_file(pytestconfig: pytest.Config) -> Path:
    """The agents file that `served` serves: ``agents.toml`` in pytest's root folder; define a fixture of this name for another one."""
    return pytestconfig.rootpath / "agents.toml"


@pytest.fixture
def served(agents_file: Path) -> Iterator[Served]:
    """The agents of the file, served for one test: see `turnstream.testing.Served`."""
    from turnstream.testing import serve

    with serve(agents_file) as served:
        yield served
