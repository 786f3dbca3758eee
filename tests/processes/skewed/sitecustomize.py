"""A host whose clock is wrong: read by Python at the start of any process that has this folder on its path."""

from __future__ import annotations

import os
import time

_SKEW = float(os.environ["CLOCK_SKEW_SECONDS"])
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _SKEW
time.time_ns = lambda: _time_ns() + int(_SKEW * 1e9)
