"""All pictures of some runs, by name."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pfed1bs.core.errors import UserError
from pfed1bs.report.groups import Group, groups
from pfed1bs.report.panels import accuracy_clients, differences, wire
from pfed1bs.report.pictures import Picture, Shown, shown_of
from pfed1bs.report.plots import accuracy_bytes, accuracy_rounds, diagnostics, training_loss
from pfed1bs.report.records import RunRecord
from pfed1bs.report.results import labelled
from pfed1bs.report.statistics import Against

PICTURES: dict[str, Callable[[Sequence[Shown]], Picture | None]] = {
    "accuracy-bytes": accuracy_bytes,
    "accuracy-rounds": accuracy_rounds,
    "accuracy-clients": accuracy_clients,
    "wire": wire,
    "training-loss": training_loss,
    "diagnostics": diagnostics,
}
ENDINGS = (".svg", ".csv", ".png")


def draw_all(found: Sequence[Group], against: Against | None = None) -> dict[str, Picture]:
    """The pictures by name, without those that would be empty."""
    shown = shown_of(found)
    drawn = {name: draw(shown) for name, draw in PICTURES.items()}
    if against:
        drawn["differences"] = differences(shown, against.verdicts(labelled(found)), against.method)
    return {name: picture for name, picture in drawn.items() if picture is not None}


def draw(records: Sequence[RunRecord], name: str, path: str | Path) -> None:
    """Write one picture of PICTURES to an .svg or .png file, or what it shows to a .csv file."""
    picture = PICTURES[name](shown_of(groups(records)))
    if picture is None:
        raise UserError(f"there is nothing to draw in {path}: no run has what {name} shows")
    picture.write(Path(path))
