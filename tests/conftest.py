"""Options that make a missing kernel or GPU a failure, and the switches that several tests share."""

from multiprocessing import get_context

import pytest
import torch

import gpu_twin
from fresh import Fresh
from pfed1bs.core import cuda, cuda_bits, native, nvrtc
from pfed1bs.nn import cuda_convolutions, cuda_normalisations, cuda_steps
from pfed1bs.wire import messages as wire


def pytest_addoption(parser):
    parser.addoption("--require-kernel", action="store_true", help="fail when the native kernels were not built")
    parser.addoption("--require-gpu", action="store_true", help="fail when there is no CUDA device")


def pytest_configure(config):
    if config.getoption("--require-kernel") and not native.built:
        raise pytest.UsageError("--require-kernel: pfed1bs.core._fht was not built; install a C compiler and reinstall")
    if config.getoption("--require-gpu") and not torch.cuda.is_available():
        raise pytest.UsageError("--require-gpu: torch sees no CUDA device")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("kernel") and not native.enabled:
            item.add_marker(pytest.mark.skip(reason="native kernels are not built or switched off"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def without_kernel(monkeypatch):
    """Everything goes through torch and numpy."""
    monkeypatch.setattr(native, "enabled", False)


@pytest.fixture(params=["native", "torch"])
def either_path(request, monkeypatch):
    """Run the test on the native kernels, where they were built, and again without them."""
    monkeypatch.setattr(native, "enabled", native.built and request.param == "native")


@pytest.fixture(params=["twin", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where the GPU's kernels run: their twin on the CPU, or a CUDA device."""
    if request.param == "gpu":
        assert nvrtc.available()
        return torch.device("cuda", 0)
    if gpu_twin.COMPILER is None:
        pytest.skip("no C compiler for the twin of the GPU kernels")
    for module in (cuda, cuda_bits, cuda_convolutions, cuda_normalisations, cuda_steps):
        monkeypatch.setattr(module, "launch", gpu_twin.launch)
    monkeypatch.setattr(cuda, "largest", lambda device: 15)
    return torch.device("cpu")


@pytest.fixture(scope="session")
def fresh():
    """New processes that know torch already (fresh.py)."""
    with Fresh() as found:
        yield found


@pytest.fixture
def no_page(monkeypatch):
    """Runs leave all but the page and its pictures, which take longer to draw than a small run."""
    monkeypatch.setattr("pfed1bs.report.write", lambda *_: None)


@pytest.fixture
def forked_runs(monkeypatch):
    """Processes of runs side by side are forks of one that has imported what they need, so that it is done once."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["pfed1bs.studies.comparison", "sklearn.datasets"])
    monkeypatch.setattr("pfed1bs.studies.comparison.get_context", lambda kind: context)


@pytest.fixture
def threads():
    """torch.set_num_threads, undone after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def decoded(monkeypatch):
    """The layouts of the payloads that were decoded."""
    found, fields = [], wire._fields
    monkeypatch.setattr(
        "pfed1bs.wire.messages._fields", lambda layout, *rest: found.append([*layout]) or fields(layout, *rest)
    )
    return found
