"""Who holds what, as a table for the terminal and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from pfed1bs.core.extras import need
from pfed1bs.data.federation import Federation
from pfed1bs.report.owned import holdings

if TYPE_CHECKING:
    from rich.table import Table


def table(federation: Federation, most: int = 10) -> "Table":
    """One row per client: sample counts, labels held, and its `most` frequent labels as label:count."""
    need("rich", "cli")
    from rich.table import Table

    told = f"{federation.num_classes} labels" if federation.labelled else "no labels"
    result = Table(title=f"{federation.clients} clients, {told}")
    for heading in ("client", "train", "test", "labels"):
        result.add_column(heading, justify="right")
    result.add_column("training samples per label")
    if federation.owners:
        result.add_column("owner")
    late = federation.newcomers.tolist()
    for client, (train, test) in enumerate(zip(*(part.tolist() for part in federation.table()), strict=True)):
        held = sorted((label for label, count in enumerate(train) if count), key=lambda label: -train[label])
        text = " ".join(f"{label}:{train[label]}" for label in sorted(held[:most])) if federation.labelled else ""
        rest = f" and {len(held) - most} more" if len(held) > most else ""
        owner = [f"{name} (newcomer)" if client in late else name for name in federation.owners[client : client + 1]]
        labels = str(len(held)) if federation.labelled else ""
        result.add_row(str(client), str(sum(train)), str(sum(test)), labels, text + rest, *owner)
    return result


def picture(federation: Federation, path: str | Path) -> None:
    """Draw one bar per client, cut by label, to a file that ends in .svg, .png or .csv."""
    need("matplotlib", "report")
    holdings(federation.table()[0].numpy()).write(Path(path))
