"""Pictures and one self-contained page, from the files of run folders only."""

from pfed1bs.report.page import write
from pfed1bs.report.plots import (
    accuracy_bytes,
    accuracy_clients,
    accuracy_rounds,
    diagnostics,
    training_loss,
)
from pfed1bs.report.records import RunRecord, collect, go_on, read

__all__ = [
    "RunRecord",
    "accuracy_bytes",
    "accuracy_clients",
    "accuracy_rounds",
    "collect",
    "diagnostics",
    "go_on",
    "read",
    "training_loss",
    "write",
]
