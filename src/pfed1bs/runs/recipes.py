"""Recipes: TOML files, named by their path, or by their name where they come with the package."""

import tomllib
from pathlib import Path

from pfed1bs.core.errors import UserError, close

FOLDER = Path(__file__).parents[1] / "recipes"


def names() -> list[str]:
    """Those that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(recipe: str) -> dict[str, object]:
    """The tables of a recipe; a file goes before a name."""
    path = Path(recipe)
    if not path.exists() and recipe in names():
        path = FOLDER / f"{recipe}.toml"
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        files = [str(file) for file in sorted(path.parent.glob("*.toml"))]
        near = close(recipe, files) or close(path.stem, names())
        told = f"did you mean {near}?" if near else f"give the path of a .toml file, or one of {', '.join(names())}"
        raise UserError(f"no recipe {recipe}", told) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise UserError(f"{recipe} is not a TOML file: {error}", f"see {FOLDER}/digits.toml for an example") from error
