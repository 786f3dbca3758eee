"""A project's folder: what `turnstream init` writes into it, and what `turnstream dev` takes from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from turnstream.shared.errors import ConfigurationError

if TYPE_CHECKING:
    from turnstream.shared.settings import Settings

AGENTS = Path("agents.toml")

_NEW = Path(__file__).parent / "new_project"

# Under these names here, since what they would do for their folder is not meant for ours.
_RENAMED = {"gitignore": ".gitignore"}


def init(folder: Path) -> list[Path]:
    """Write a new project into a folder, which is made if need be. Returns the files, by their names there.

    Raises:
        ConfigurationError: one of them is there already, and nothing was written; or the folder cannot be written to.
    """
    texts = {
        Path(_RENAMED.get(path.name, path.name)): path.read_text()
        for path in sorted(_NEW.iterdir())
        if path.is_file()
    }
    if there := [str(folder / name) for name in texts if (folder / name).exists()]:
        raise ConfigurationError(
            f"{', '.join(there)}: there already. Nothing was written: choose an empty folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with (folder / name).open("x") as file:
                file.write(text)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from None
    return list(texts)


def of_folder(settings: Settings) -> Settings:
    """The settings with ``agents.toml`` of the working directory, and the first of its agents for the dev key, unless they say otherwise.

    Raises:
        ConfigurationError: the file is wrong; named with its line.
    """
    path = settings.agents or (AGENTS if AGENTS.exists() else None)
    if path is None:
        return settings
    # `init` needs none of the server's packages.
    from turnstream.shared.agents import config

    mine = config.load(path).of_the_file()
    first = {} if "dev_agent" in settings.model_fields_set or not mine else {"dev_agent": mine[0].name}
    return settings.model_copy(update={"agents": path, **first})
