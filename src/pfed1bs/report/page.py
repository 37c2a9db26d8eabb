"""One HTML file that says what was run, what came out and what it cost; it needs nothing but a browser."""

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from pfed1bs.core.extras import need
from pfed1bs.report.drawn import ENDINGS, draw_all
from pfed1bs.report.groups import groups
from pfed1bs.report.records import RunRecord
from pfed1bs.report.results import labelled, results
from pfed1bs.report.statistics import Against
from pfed1bs.report.style import DARK
from pfed1bs.report.tables import clients, environments, facts, notes, settings

CAPTIONS = {
    "accuracy-bytes": "Personal {} against everything sent until then, up and down, by all clients together.",
    "accuracy-rounds": "Personal {} against rounds.",
    "accuracy-clients": "Personal {} client by client, after the last round, beside the labels that each holds.",
    "wire": "What crossed the wire.",
    "differences": "Differences.",
    "training-loss": "Training loss, mean over the clients of a round.",
    "diagnostics": "What the methods log about themselves, by rounds.",
}


def write(
    records: Sequence[RunRecord], path: str | Path, against: Against | None = None, endings: Sequence[str] = ENDINGS[:2]
) -> None:
    """Write the page of one or many runs to `path`, its pictures and their numbers to plots/NAME.svg and .csv."""
    need("matplotlib", "report")
    jinja2 = need("jinja2", "report")
    path, found = Path(path), groups(records)
    drawn, metric = draw_all(found, against), found[0].metric
    captions = {name: text.format(metric.name if metric.percent else metric.words) for name, text in CAPTIONS.items()}
    (path.parent / "plots").mkdir(parents=True, exist_ok=True)
    for name, picture in drawn.items():
        for ending in endings:
            picture.write(path.parent / "plots" / f"{name}{ending}")
    jinja = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = jinja.from_string(files("pfed1bs.report").joinpath("report.html").read_text(encoding="utf-8"))
    page = template.render(
        facts=facts(records),
        table=results(found),
        against=against.method if against else "",
        differences=against.sheet(labelled(found)) if against else [],
        pictures=[(name, captions[name], inline(item.svg, name, captions[name])) for name, item in drawn.items()],
        metric=metric,
        notes=notes(found),
        clients=clients(found),
        settings=settings(found),
        environments=environments(records),
        commands=dict.fromkeys(str(record.summary.get("command", record.env.get("command"))) for record in records),
        colours={variable(light): (light, dark) for light, dark in DARK.items()},
    )
    path.write_text(page, encoding="utf-8")


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
