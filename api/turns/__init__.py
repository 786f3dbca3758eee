"""What a client can do to a turn: submit, answer its calls, stop, override settings."""
