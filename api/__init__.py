from shared import lean as lean  # first of all: before any module here loads structlog
