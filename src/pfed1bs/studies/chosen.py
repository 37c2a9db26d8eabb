"""What a search chose, as tables of a recipe."""

import re
import tomllib
from collections.abc import Mapping, Sequence

from pfed1bs.core.extras import need
from pfed1bs.studies.tuning import Tuned


def table(method: str, options: Mapping[str, object]) -> str:
    """The [options.NAME] table of a recipe."""
    text: str = need("tomli_w", "cli").dumps({"options": {method: dict(options)}})
    return text


def rewritten(recipe: str, found: Sequence[Tuned]) -> str:
    """The text of a recipe with the options that were found; its other options of the same methods stay."""
    before = tomllib.loads(recipe).get("options", {})
    blocks = [block.strip() for block in re.split(r"^(?=\[)", recipe, flags=re.MULTILINE)]
    for item in found:
        new = table(item.method, {**before.get(item.method, {}), **item.options}).strip()
        at = [i for i, block in enumerate(blocks) if block.partition("\n")[0] == new.partition("\n")[0]]
        blocks = [new if i in at else block for i, block in enumerate(blocks)] if at else [*blocks, new]
    return "\n\n".join(block for block in blocks if block) + "\n"
