"""What a file with a method of your own needs, in one import; docs/extend.md builds one."""

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.algorithms.base.finetuning import Tuning
from pfed1bs.algorithms.base.method import Method
from pfed1bs.algorithms.base.replica import Replica
from pfed1bs.compressors import Compressor, Dense
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import (
    BELOW_ONE,
    FRACTION,
    INSIDE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Range,
    at_least,
    option,
)
from pfed1bs.core.rng import stream
from pfed1bs.core.sketch import Sketch, gaussian, srht
from pfed1bs.core.votes import pack, sign, tally, unpack
from pfed1bs.engine.contract import (
    Algorithm,
    Batches,
    Cohort,
    Judged,
    State,
    buffers_of,
    model_of,
    present,
    stack,
)
from pfed1bs.nn.descent import Descent, Lifted, Walk
from pfed1bs.nn.parts import Part
from pfed1bs.nn.task import Task
from pfed1bs.wire.codecs import Differences, Floats, Levels, Signs, Sparse
from pfed1bs.wire.either import Either
from pfed1bs.wire.messages import Codec, Kind, Layout, Message
from pfed1bs.wire.rows import CountedRows, Rows

__all__ = [
    "BELOW_ONE",
    "FRACTION",
    "INSIDE",
    "NOT_NEGATIVE",
    "POSITIVE",
    "SHARE",
    "Algorithm",
    "Averaging",
    "Batches",
    "Codec",
    "Cohort",
    "Compressor",
    "CountedRows",
    "Dense",
    "Descent",
    "Differences",
    "Either",
    "Floats",
    "Judged",
    "Kind",
    "Layout",
    "Levels",
    "Lifted",
    "Message",
    "Method",
    "Part",
    "Range",
    "Replica",
    "Rows",
    "Signs",
    "Sketch",
    "Sparse",
    "State",
    "Task",
    "Tuning",
    "UserError",
    "Walk",
    "at_least",
    "buffers_of",
    "gaussian",
    "model_of",
    "option",
    "pack",
    "present",
    "sign",
    "srht",
    "stack",
    "stream",
    "tally",
    "unpack",
]
