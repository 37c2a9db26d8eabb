"""Which GPU there is and why it cannot be used, with a torch that is told what to answer."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from pfed1bs.core import gpu, nvrtc
from pfed1bs.core.errors import UserError
from pfed1bs.engine.rounds import choose
from pfed1bs.runs.environment import environment

GIB = 2**30
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040). Please update\nsee https://..."


@pytest.fixture
def card(monkeypatch):
    """A GPU of compute capability 9.0 with a matching driver, unless told."""

    def set_up(capability=(9, 0), arches=("sm_75", "sm_80", "sm_90", "compute_120"), error=None, reason=None):
        def init():
            if error:
                raise RuntimeError(error)

        answers = {
            "init": init,
            "is_available": lambda: error is None,
            "device_count": lambda: 1,
            "get_device_capability": lambda index=0: capability,
            "get_device_name": lambda index=0: "NVIDIA Toy",
            "get_arch_list": lambda: list(arches),
            "mem_get_info": lambda index=0: (3 * GIB, 8 * GIB),
            "get_device_properties": lambda index=0: SimpleNamespace(total_memory=8 * GIB),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(gpu, "driver", lambda: "580.65")
        monkeypatch.setattr(nvrtc, "trouble", lambda: reason)

    return set_up


def test_a_gpu_that_can_be_used_is_described_in_one_line_and_written_down(card):
    card()
    assert gpu.described() == (
        "NVIDIA Toy, 3.0 of 8.0 GiB free, driver 580.65, CUDA 13.0, compute capability 9.0; our kernels compile"
    )
    assert choose("auto").type == choose("cuda:0").type == "cuda"
    found = environment("cuda")
    assert (found["device"], found["driver"], found["gpu_kernels"]) == ("NVIDIA Toy", "580.65", "compiled")


def test_a_gpu_that_does_not_answer_is_described_all_the_same(card, monkeypatch):
    reason = "CUDA error: all CUDA-capable devices are busy or unavailable"

    def busy(index=0):
        raise RuntimeError(f"{reason}\nFor debugging consider ...")

    card()
    monkeypatch.setattr(torch.cuda, "mem_get_info", busy)
    assert gpu.described() == f"NVIDIA Toy, which does not answer: {reason}"


def test_why_kernels_do_not_compile_is_said(card):
    card(reason="libnvrtc.so.13 was not found")
    assert gpu.described().endswith("cannot be used, slower torch operations are: libnvrtc.so.13 was not found")
    assert gpu.facts()["gpu_kernels"] == "libnvrtc.so.13 was not found"


def test_a_gpu_that_is_too_old_is_refused_by_name_and_passed_over_by_auto(card):
    card(capability=(6, 1))
    reason = r"NVIDIA Toy has compute capability 6.1, torch \S+ was built for sm_75, sm_80, sm_90, compute_120"
    with pytest.raises(UserError, match=f"{reason}; .*--device cpu"):
        choose("cuda")
    with pytest.warns(UserWarning, match=f"the CPU is: {reason}"):
        assert choose("auto").type == "cpu"
    assert gpu.described().startswith("none: NVIDIA Toy has compute capability 6.1")


def test_a_gpu_that_is_newer_than_torch_is_refused_by_name_with_the_way_out(card):
    card(capability=(12, 0), arches=("sm_75", "sm_80", "sm_86", "sm_90"))
    with pytest.raises(UserError, match=r"12.0, torch \S+ was built for sm_75, sm_80, sm_86, sm_90; .*--device cpu"):
        choose("cuda")


@pytest.mark.parametrize(
    "capability, arches, runs",
    [
        ((8, 9), ["sm_86"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_86"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100"], True),
        ((10, 3), ["sm_100a"], False),
        ((10, 3), ["sm_100f"], True),
        ((12, 1), ["sm_90", "compute_90"], True),
        ((8, 9), ["compute_90"], False),
        ((12, 0), ["gfx90a"], False),
        ((12, 0), [], True),  # it does not say
    ],
)
def test_chips_run_what_was_built_for_an_earlier_one_of_their_kind_or_can_be_compiled_anew(
    card, capability, arches, runs
):
    card(capability=capability, arches=arches)
    assert (gpu.trouble() is None) == runs


def test_a_driver_that_does_not_match_torch_is_said_with_the_way_out(card):
    card(error=OLD_DRIVER)
    with pytest.raises(UserError, match=r"driver on your system is too old \(found version 11040\).*--device cpu"):
        choose("cuda")
    assert "\n" not in gpu.described() and choose("auto").type == "cpu"


def test_the_number_of_a_gpu_that_is_not_there_is_refused(card):
    card()
    with pytest.raises(UserError, match="no device cuda:3 here: there are 1 of them, counted from 0"):
        choose("cuda:3")


def test_torch_without_cuda_says_so(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu.described() == f"none: torch {torch.__version__} was built without CUDA"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun", "580.65.06"), ("", "560.1")],
)
def test_the_driver_is_asked_for_its_version(tmp_path, monkeypatch, text, expected):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(gpu, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(gpu.shutil, "which", lambda name: name)
    answer = subprocess.CompletedProcess([], 0, "560.1\n560.1\n")
    monkeypatch.setattr(gpu.subprocess, "run", lambda *words, **more: answer)
    assert gpu.driver() == expected


def test_a_driver_that_cannot_be_asked_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "DRIVER", tmp_path / "nothing")
    monkeypatch.setattr(gpu.shutil, "which", lambda name: None)
    assert gpu.driver() == "unknown"
