"""The rows of the benchmark of a GPU, made at small sizes on whatever there is; times themselves are not tested."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from pfed1bs.core import graphs, native, nvrtc
from pfed1bs.data.catalogue import CATALOGUE
from pfed1bs.facts import bench_gpu as gpu
from pfed1bs.runs.config import load


def test_every_kind_has_rows_and_a_line_for_each(monkeypatch):
    monkeypatch.setattr(gpu, "SHAPES", ((2, 5), (1, 6)))
    monkeypatch.setattr(gpu, "PLAIN", ((2, 5),))
    monkeypatch.setattr(gpu, "WEIGHTS", {"mlp": 50})
    monkeypatch.setattr(gpu, "MODELS", {"mlp": ((12,), 3), "vgg16": ((3, 32, 32), 4)})
    for name, value in (("CLIENTS", 2), ("SAMPLES", 8), ("BATCH", 4), ("STEPS", 1), ("LONG", 0)):
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr(gpu, "load", lambda name: replace(load(name), clients=2, sampled=1, steps=1, batch=4))
    monkeypatch.setattr(gpu, "names", lambda: ["mnist-2class", "fmnist-2class", "digits", "shakespeare-lora"])
    once = gpu._elapsed
    monkeypatch.setattr(gpu, "_elapsed", lambda work, times, device: once(work, 1, device))  # a mean of one is one too
    told, found = [], {kind: [] for kind in gpu.COLUMNS}
    monkeypatch.setattr(gpu, "multiply", lambda device, tf32: told.append((device.type, tf32)))
    for kind, row in gpu.measured(device="cpu"):
        found[kind].append(row)
    assert told == [("cpu", False)]  # torch's own default has tf32 in convolutions
    operations = ["forward", "adjoint", "pull", "pack", "unpack", "vote"]
    assert [row["operation"] for row in found["kernels"]] == [*["hadamard"] * 2, *operations]
    assert all(row["torch_ms"] > 0 and row["x torch"] > 0 for row in found["kernels"][2:])
    assert all(row["same_bits"] for row in found["kernels"][:2]) and "x torch" in found["kernels"][0]
    assert [row["model"] for row in found["steps"]] == ["mlp"]  # the large one only on request
    assert [row["algorithm"] for row in found["rounds"]] == [*gpu.METHODS]
    assert [row["recipe"] for row in found["recipes"]] == ["mnist-2class, fmnist-2class", "digits"]  # lora: own data
    assert all(row["rounds/s"] > 0 for row in (*found["rounds"], *found["recipes"])) and graphs.enabled
    for kind, rows in found.items():
        assert all(len(line) == len(gpu.COLUMNS[kind]) for line in gpu.lines(kind, rows))


def test_numbers_are_told_with_four_digits_and_what_was_not_measured_stays_empty():
    row = {"operation": "pull", "shape": "20 x 50", "ms": 0.123456, "copies": 4.0}
    assert gpu.lines("kernels", [row]) == [["pull", "20 x 50", "0.1235", "4", ""]]


def test_long_rounds_are_soon_enough_of_them(monkeypatch):
    monkeypatch.setattr(gpu, "simulate", lambda *given, **named: (SimpleNamespace(seconds=s) for s in range(1, 13)))
    found = gpu._rounds(None, None, None, "vgg16", torch.device("cpu"))
    assert (found["ms"], found["best ms"]) == (5000, 5000)  # 15 seconds: four rounds that do not count, and one


def test_models_are_those_of_the_recipes():
    assert gpu.federation("mlp").shape == (784,) and gpu.federation("vgg8").shape == (3, 32, 32)
    assert torch.bincount(gpu.federation("mlp").labels).tolist() == [400] * 10


def test_letters_have_the_letters_after_them_as_targets():
    text = gpu._random(CATALOGUE["shakespeare"], 2)
    assert torch.equal(text.inputs[:, 1:], text.labels[:, :-1]) and text.shape == CATALOGUE["shakespeare"].shape


def test_plain_torch_is_measured_without_any_kernel_of_ours():
    before = native.enabled, nvrtc.enabled
    with gpu._plain():
        assert not native.enabled and not nvrtc.enabled
    assert (native.enabled, nvrtc.enabled) == before and nvrtc.enabled
