"""What lies outside of a drawn picture."""

import re
from xml.etree import ElementTree

from pfed1bs.report.style import width_of

BEFORE = {"start": 0.0, "middle": 0.5, "end": 1.0}  # share of a text that stands before its place


def outside(svg):
    """The texts of an SVG that leave its viewBox, in the font that it is laid out with."""
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    texts = [element for element in root.iter("{http://www.w3.org/2000/svg}text") if (element.text or "").strip()]
    assert texts
    boxes = {element: _box(element) for element in texts}
    return [e.text for e, (x, y, right, low) in boxes.items() if x < 0 or y < 0 or right > width or low > height]


def _box(element):
    """Left, top, right and bottom of a text that lies or stands upright."""
    style = dict(part.split(": ", 1) for part in element.get("style").split("; "))
    size = float(style["font-size"].removesuffix("px"))
    wide = width_of(element.text, size, "bold" if style.get("font-weight") == "700" else "normal")
    turned = element.get("transform")
    place = (
        re.findall(r"-?[\d.]+", turned)[:2] if turned.startswith("translate") else (element.get("x"), element.get("y"))
    )
    x, y = map(float, place)
    upright = "rotate(-90" in turned
    before = BEFORE[style.get("text-anchor", "start")] * wide
    tall = 0.75 * size  # above the line that it stands on
    return (x - tall, y - wide + before, x, y + before) if upright else (x - before, y - tall, x - before + wide, y)
