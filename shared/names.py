"""The names that owners, sessions, tasks and calls may have."""

from __future__ import annotations

import re

# What an owner, a session, a task and a call may be called: up to 128 of these, but "." and ".." are steps in an
# address, which clients and proxies take out. (Written out, since pydantic's patterns do not look ahead.)
NAME = (
    r"(?:[A-Za-z0-9_:@-][A-Za-z0-9_.:@-]{0,127}"
    r"|\.[A-Za-z0-9_:@-][A-Za-z0-9_.:@-]{0,126}"
    r"|\.\.[A-Za-z0-9_.:@-]{1,126})"
)
NAME_IN_WORDS = (
    "letters (A-Z, a-z), digits and _ . : @ -, at most 128 of them (a taskId: 36), but not '.' or '..'"
)

# Owners, sessions and users: what may stand in a key's name and in a task's ref.
IDENTIFIER = re.compile(NAME, re.ASCII)

# A response that goes on with its turn: what an address or a field has behind the turn's name. See api/turns/ids.py.
FURTHER = "(?:~[1-9][0-9]{0,8})?"
