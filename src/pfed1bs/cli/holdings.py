"""Who holds what, as a table for the terminal and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from pfed1bs.core.extras import need
from pfed1bs.data.federation import Federation
from pfed1bs.report.owned import holdings

if TYPE_CHECKING:
    from rich.table import Table

MANY, FEW, BARS = 200, 20, 500  # clients up to which all have a row; rows there are otherwise; bars in a picture


def table(federation: Federation, most: int = 10) -> "Table":
    """One row per client: sample counts, labels held, and its `most` frequent labels as label:count.

    Of many clients the first, and below them what all have.
    """
    need("rich", "cli")
    from rich.table import Table

    told = f"{federation.num_classes} labels" if federation.labelled else "no labels"
    result = Table(title=f"{federation.clients:,} clients, {told}")
    for heading in ("client", "train", "test", "labels"):
        result.add_column(heading, justify="right")
    result.add_column("training samples per label")
    if federation.owners:
        result.add_column("owner")
    late, held = federation.newcomers.tolist(), federation.table()
    few = federation.clients if federation.clients <= MANY else FEW
    for client, (train, test) in enumerate(zip(*(part[:few].tolist() for part in held), strict=True)):
        own = sorted((label for label, count in enumerate(train) if count), key=lambda label: -train[label])
        text = " ".join(f"{label}:{train[label]}" for label in sorted(own[:most])) if federation.labelled else ""
        rest = f" and {len(own) - most} more" if len(own) > most else ""
        owner = [f"{name} (newcomer)" if client in late else name for name in federation.owners[client : client + 1]]
        labels = str(len(own)) if federation.labelled else ""
        result.add_row(str(client), str(sum(train)), str(sum(test)), labels, text + rest, *owner)
    if few < federation.clients:
        least, middle, most_samples = (f"{value:,}" for value in quantiles(federation.sizes))
        result.caption = (
            f"and {federation.clients - few:,} more; {int(held[0].sum()):,} training and {int(held[1].sum()):,} test "
            f"samples in all, {least} to {most_samples} for training at a client, in the middle {middle}"
        )
    return result


def quantiles(sizes: Tensor) -> tuple[int, int, int]:
    """The least, the median and the most."""
    return int(sizes.min()), int(sizes.median()), int(sizes.max())


def picture(federation: Federation, path: str | Path) -> None:
    """Draw one bar per client, cut by label, to a file that ends in .svg, .png or .csv; of many, some of them."""
    need("matplotlib", "report")
    holdings(federation.table()[0][:: -(-federation.clients // BARS)].numpy()).write(Path(path))
