"""What the tests of this folder share."""

from tests.processes.conftest import deployment

__all__ = ["deployment"]
