"""Who holds what, as a table for the terminal and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pfed1bs.core.errors import UserError
from pfed1bs.core.extras import need
from pfed1bs.data.federation import Federation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

LEGEND = 20  # labels that still get a colour of their own; more share a colour scale


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
    """Draw one bar per client, cut by label; the ending of `path` (.svg, .png) chooses the format."""
    need("matplotlib", "report")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows, classes = federation.clients, federation.num_classes if federation.labelled else 1
    height = max(0.9 + rows * (0.2 if rows <= 40 else 0.12), 1.2 + 0.2 * min(classes, LEGEND))
    with rc_context({"svg.hashsalt": "pfed1bs", "font.size": 9}):
        figure = Figure(figsize=(8, height), layout="constrained")
        endings = figure.canvas.get_supported_filetypes()
        if Path(path).suffix[1:] not in endings:
            raise UserError(
                f"{path} names no kind of picture", f"end it in .svg or .png; known are {', '.join(endings)}"
            )
        axes = figure.add_subplot()
        _bars(axes, federation)
        axes.set_xlabel("training samples")
        axes.set_ylabel("client")
        axes.set_yticks(range(0, rows, 1 if rows <= 50 else 5))
        axes.set_ylim(rows - 0.4, -0.6)
        axes.grid(axis="x", linewidth=0.4, alpha=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None} if Path(path).suffix == ".svg" else None, dpi=110)


def _bars(axes: "Axes", federation: Federation) -> None:
    """Stacked bars, and the legend or colour scale that explains them."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    counts = federation.table()[0].numpy()  # (K, C)
    lefts = np.cumsum(counts, axis=1) - counts
    classes = counts.shape[1]
    few = classes <= LEGEND
    colours = colormaps["tab10" if classes <= 10 else "tab20" if few else "turbo"]
    for label in range(classes):
        held = np.flatnonzero(counts[:, label])
        colour = colours(label) if few else colours(label / (classes - 1))
        axes.barh(held, counts[held, label], 0.8, lefts[held, label], color=colour, label=str(label))
    if few:
        axes.legend(title="label", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    else:
        scale = ScalarMappable(Normalize(0, classes - 1), colours)
        axes.figure.colorbar(scale, ax=axes, label="label", shrink=0.6, aspect=30)
