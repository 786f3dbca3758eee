"""``turnstream`` whose front ends do not look now and then whether a log still is as they know it.

Where what is published was recorded (see bench/feeder.py), the log does not have it: who looks finds another log, and says so.
"""

from __future__ import annotations

from turnstream.api.streaming import hub
from turnstream.cli import main

hub.LOOK_SECONDS = 86_400.0

if __name__ == "__main__":
    main()
