"""``turnstream chat``: the terminal client."""
