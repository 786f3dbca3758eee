"""The front end: a Starlette application that queues turns and streams their events.

A front end has no terminal: `without_rich` comes before any module here loads structlog.
"""

from turnstream.shared import without_rich as without_rich  # first: see above
