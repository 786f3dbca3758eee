"""``turnstream doctor``: looks at a deployment from outside, and says what to do about what it finds."""
