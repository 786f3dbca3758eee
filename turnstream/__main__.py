"""``python -m turnstream`` is ``turnstream``."""

from turnstream.cli import main

if __name__ == "__main__":
    main()
