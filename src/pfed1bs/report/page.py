"""One HTML file that says what was run, what came out and what it cost; it needs nothing but a browser."""

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from pfed1bs.core.extras import need
from pfed1bs.report.columns import wire
from pfed1bs.report.drawn import ENDINGS, draw_all
from pfed1bs.report.groups import Group, differing, groups
from pfed1bs.report.headline import headline
from pfed1bs.report.leading import leading, ordered
from pfed1bs.report.pictures import Picture, shown_of
from pfed1bs.report.records import RunRecord
from pfed1bs.report.repeat import repeated
from pfed1bs.report.results import labelled, results
from pfed1bs.report.statistics import Against
from pfed1bs.report.style import DARK
from pfed1bs.report.tables import clients, environment, facts, notes, settings

CAPTIONS = {
    "accuracy-rounds": "Personal {} against rounds, with 95 % intervals over seeds.",
    "accuracy-bytes": "Personal {} against everything sent until then, up and down, by all clients together.",
    "differences": "Personal {} minus that of the method named below the axis, seed by seed, after the last round.",
    "accuracy-clients": "Personal {} of every client after the last round, beside the samples that it trains on.",
    "wire": "What crosses the wire in a round, in the mean over rounds.",
    "training-loss": "Training loss, mean over the clients of a round.",
    "diagnostics": "What the methods log about themselves, by rounds.",
}
CURVES = ("accuracy-rounds", "accuracy-bytes", "training-loss")  # that say their numbers under the pointer


@dataclass(frozen=True)
class Shape:
    """A picture as the page has it."""

    name: str
    caption: str
    svg: str
    data: str  # its numbers, in base64
    curves: bool


def write(
    records: Sequence[RunRecord], path: str | Path, against: Against | None = None, endings: Sequence[str] = ENDINGS[:2]
) -> None:
    """Write the page of one or many runs to `path`, its pictures and their numbers to plots/NAME.svg and .csv."""
    need("matplotlib", "report")
    path, found = Path(path), ordered(groups(records))
    against = against or usual(found)
    drawn = draw_all(found, against)
    (path.parent / "plots").mkdir(parents=True, exist_ok=True)
    for name, picture in drawn.items():
        for ending in endings:
            picture.write(path.parent / "plots" / f"{name}{ending}")
    path.write_text(page(records, found, drawn, against), encoding="utf-8")


def usual(found: Sequence[Group]) -> Against | None:
    """Training alone, where it was run once and beside the others, on the same data with the same work."""
    alone = [group.label for group in found if group.algorithm == "local"]
    keys = differing([group.settings for group in found])
    same = all(key.startswith("algorithm.") for key in keys)
    return Against(alone[0], tests=False) if len(alone) == 1 and len(found) > 1 and same else None


def page(
    records: Sequence[RunRecord], found: Sequence[Group], drawn: dict[str, Picture], against: Against | None
) -> str:
    """The page as text."""
    jinja = need("jinja2", "report").Environment(
        autoescape=True, undefined=need("jinja2", "report").StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    metric, home, again = found[0].metric, files("pfed1bs.report"), repeated(records, found)
    told = metric.name if metric.percent else metric.words
    texts = {part: home.joinpath(f"report.{part}").read_text(encoding="utf-8") for part in ("html", "css", "js")}
    text: str = jinja.from_string(texts["html"]).render(
        style=texts["css"],
        script=texts["js"],
        headline=headline(found),
        facts=facts(records),
        table=results(found),
        wire=results(found, wire),
        marks=[item.colour for item in shown_of(found)],
        leads=leading(found),
        against=against,
        differences=against.sheet(labelled(found)) if against else [],
        explained=against.explained(labelled(found)) if against else "",
        pictures={name: shape(name, item, CAPTIONS[name].format(told), found) for name, item in drawn.items()},
        metric=metric,
        notes=notes(found),
        clients=clients(found),
        settings=settings(found),
        environment=environment(records),
        repeat=again,
        recipe=b64encode(again.recipe.encode()).decode(),
        colours={variable(light): (light, dark) for light, dark in DARK.items()},
    )
    return text


def shape(name: str, picture: Picture, caption: str, found: Sequence[Group]) -> Shape:
    """A picture in the page, with the names of groups where a browser shows them without a script."""
    drawn = inline(picture.svg, name, caption)
    for kind in ("line", "dots", "dot"):
        drawn = re.sub(
            rf'<g class="{kind}" data-group="(\d+)">',
            lambda at: f"{at[0]}<title>{escape(found[int(at[1])].label)}</title>",
            drawn,
        )
    return Shape(name, caption, drawn, b64encode(picture.csv.encode()).decode(), name in CURVES)


def inline(svg: str, name: str, caption: str) -> str:
    """An SVG file as part of the page: its colours follow the page's, its ids are its own, its size is the reader's."""
    opening, body = re.fullmatch(r".*?<svg([^>]*)>(.*)", svg, re.DOTALL).groups()  # type: ignore[union-attr]
    opening = re.sub(r'\s(width|height|version|xmlns(:\w+)?)="[^"]*"', "", opening)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'href="#', f'href="#{name}-', body).replace("url(#", f"url(#{name}-")
    body = body.replace("xlink:href", "href")
    for light in DARK:
        body = body.replace(light, f"var({variable(light)})")
    return f'<svg{opening} role="img" aria-label="{escape(caption)}">{body}'


def variable(colour: str) -> str:
    """The CSS variable that stands for a colour of the light page."""
    return f"--c-{colour.removeprefix('#')}"
