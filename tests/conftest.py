"""Options that make a missing kernel or GPU a failure, and the switches that several tests share."""

import pytest
import torch

from pfed1bs.core import native


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


@pytest.fixture
def threads():
    """torch.set_num_threads, undone after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
