"""A session and its tasks: log, states, queue, endings, counters of their owner."""
