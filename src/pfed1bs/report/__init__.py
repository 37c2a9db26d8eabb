"""Pictures and one self-contained page, from the files of run folders only."""

from pfed1bs.report.drawn import draw
from pfed1bs.report.page import write
from pfed1bs.report.records import RunRecord, collect, go_on, read

__all__ = ["RunRecord", "collect", "draw", "go_on", "read", "write"]
