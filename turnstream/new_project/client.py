"""A client of the agent, with the function that the agent calls here. Start `turnstream dev` first, then `python client.py`."""

from __future__ import annotations

from pathlib import Path

from turnstream import Client

# The key that `turnstream dev` made in this folder.
KEY = Path(".turnstream/dev_key").read_text()

if __name__ == "__main__":
    with Client("http://127.0.0.1:8090", KEY) as client:

        @client.function("pick_colour")
        def pick_colour(choices: list[str]) -> str:
            """Ask the customer; here the first one does."""
            return choices[0]

        print(client.chat("/tool discount 80 25").text())
        print(client.chat('/call pick_colour {"choices": ["red", "blue"]}').text())
