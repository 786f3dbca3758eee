"""The client of Redis or Valkey: connection, pipeline, scripts, keys."""
