"""The pictures of tables and figures, by the names that recipes give them."""

from pfed1bs.report.drawn import PICTURES
from pfed1bs.report.plots import LOGGED
from pfed1bs.studies.facets import METHODS
from pfed1bs.studies.falls import falls

DRAWN = {**PICTURES, **METHODS, "falls": falls}
AGAINST = "against-"  # before the option of a method that the last values are drawn against
LAST = {**LOGGED, "loss": "training loss"}  # of curves, what a table may have of the last evaluation
