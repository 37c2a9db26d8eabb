"""Work on a CUDA device recorded once and replayed: the device is told in one word what takes Python hundreds."""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock

import torch
from torch import Tensor

State = dict[str, Tensor]
Work = Callable[[State], State]  # named tensors to named tensors; may write over what it is given, may not look at it

LIMIT = 8  # graphs kept by one owner, each with memory of its own
TRIES = 5  # of a work that is timed; the fastest counts

enabled = True  # tests and benchmarks switch it off to compare


class Graphs:
    """The recorded works of one owner; a key says all that a work depends on beside its tensors.

    The first call with a key and shapes runs as it is, the second records. What cannot be recorded (a work that waits
    for the device, too little memory) goes on running as it is.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, _Graph | None] = OrderedDict()
        self._lock = Lock()

    def __call__(self, key: Hashable, work: Work, given: State, room: State | None = None) -> State | None:
        """The results of a replay in memory of their own, or in `room` where it has their names; None: do it yourself.

        The tensors given stay as they are. Other tensors that the work reads are read again in every replay.
        """
        first = next(iter(given.values()))
        if not (enabled and first.is_cuda) or torch.cuda.is_current_stream_capturing():
            return None
        shapes = tuple((name, value.shape, value.dtype, value.device) for name, value in given.items())
        with self._lock, torch.cuda.device(first.device):
            graph = self._graph((key, shapes), work, given)
            return None if graph is None else graph.replay(given, room or {})

    def _graph(self, key: Hashable, work: Work, given: State) -> "_Graph | None":
        if key not in self._known:
            self._known[key] = _Graph()
            return None
        graph = self._known[key]
        self._known.move_to_end(key)
        if graph is not None and not graph.recorded:
            while len(self._known) > LIMIT:
                self._known.popitem(last=False)
            try:
                graph.record(work, given)
            except RuntimeError:
                graph = self._known[key] = None
        return graph


class _Graph:
    """One recorded work, with the memory that it reads and writes."""

    def __init__(self) -> None:
        self.recorded = False
        self._graph: torch.cuda.CUDAGraph
        self._given: State
        self._found: State

    def record(self, work: Work, given: State) -> None:
        """Take down what the work asks of the device."""
        own = {name: value.clone(memory_format=torch.contiguous_format) for name, value in given.items()}
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # a work that gave up before it began
            with _recording(graph):
                found = work(dict(own))
        self._graph, self._given, self._found, self.recorded = graph, own, found, True

    def replay(self, given: State, room: State) -> State:
        """Do it with these tensors."""
        for name, value in given.items():
            self._given[name].copy_(value)
        self._graph.replay()
        copies = {name: room[name].copy_(value) for name, value in self._found.items() if name in room}
        return {name: copies[name] if name in room else value.clone() for name, value in self._found.items()}


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """What is asked of the current device is taken down, on a stream of that device.

    torch's own stream for it is one for the process, of the device that was the first to record. After work that cannot
    be recorded torch leaves that the current stream, the random numbers in the state of recording and, up to 2.11, its
    memory believing that it still goes on, so that nothing that is unused would be given back to the device any more.
    """
    before, device = torch.cuda.current_stream(), torch.cuda.current_device()
    random, pool = torch.cuda.default_generators[device], torch.cuda.graph_pool_handle()
    state = random.clone_state()
    try:
        with torch.cuda.graph(graph, pool, stream=_aside(before.device), capture_error_mode="thread_local"):
            yield
    except RuntimeError:
        random.graphsafe_set_state(state)
        with suppress(RuntimeError):  # it has ended
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
        raise
    finally:
        torch.cuda.set_stream(before)


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def milliseconds(work: Callable[[], object]) -> float:
    """What some work takes a CUDA device as it will run: replayed, or as it is where it is not recorded."""
    for _ in range(2):  # libraries make themselves ready
        work()
    run = _replayable(work) if enabled else work
    run()
    return min(_timed(run) for _ in range(TRIES))


def _timed(run: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _replayable(work: Callable[[], object]) -> Callable[[], object]:
    """The replay of some work, or the work itself if it cannot be recorded."""
    graph = torch.cuda.CUDAGraph()
    try:
        with _recording(graph):
            work()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        return work
    return graph.replay
