"""A GPU that fails in the middle of a run: two lines for the user, nothing lost; and tf32 where it means nothing."""

import json

import pytest
import torch

from pfed1bs.algorithms.pfed1bs import PFed1BS
from pfed1bs.cli import main as cli
from pfed1bs.core import gpu
from pfed1bs.core.errors import Failure, UserError
from pfed1bs.core.failing import explained
from pfed1bs.runs import checkpoint
from pfed1bs.runs.precision import multiply
from run_folders import TINY

CPU = torch.device("cpu")
FULL = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
BUSY = RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nFor debugging consider ...")


def fail_in(monkeypatch, round, error):
    """Let the local work of a round end in an error."""
    local = PFed1BS.local

    def failing(self, clients, received, cohort, batches):
        if cohort.round == round:
            raise error
        return local(self, clients, received, cohort, batches)

    monkeypatch.setattr(PFed1BS, "local", failing)


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(("error", "said"), [(FULL, "--chunk 1"), (BUSY, "busy or unavailable")])
def test_a_run_whose_device_fails_says_the_way_out_and_goes_on_later(tmp_path, monkeypatch, capsys, error, said):
    flags = [*TINY, "--device", "cpu", "--rounds", "4", "--checkpoint_every", "0"]
    assert cli.main(["run", *flags, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        fail_in(patch, 2, error)
        assert cli.main(["run", *flags, "--out", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err
    assert "error: round 2: " in told and said in told and "--device cpu" in told and "--resume" in told
    assert "Traceback" not in told
    assert (tmp_path / "run" / "checkpoint.safetensors").exists() and len(metrics(tmp_path / "run")) == 2
    assert cli.main(["run", *flags, "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


@pytest.mark.usefixtures("no_page")
def test_a_device_that_is_gone_before_its_states_are_saved_leaves_the_last_checkpoint(tmp_path, monkeypatch, capsys):
    flags, save = [*TINY, "--device", "cpu", "--rounds", "4", "--checkpoint_every", "1"], checkpoint.save

    def gone(path, progress, identity):
        if progress.round == 3:
            raise RuntimeError("CUDA error: unspecified launch failure\nFor debugging consider ...")
        save(path, progress, identity)

    assert cli.main(["run", *flags, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", gone)
        assert cli.main(["run", *flags, "--out", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err
    assert "error: the checkpoint after round 2: the GPU does not answer (CUDA error: unspecified" in told
    assert "--device cpu" in told and "--resume" in told and "Traceback" not in told
    assert cli.main(["run", *flags, "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_a_gpu_that_is_busy_before_the_run_begins_is_said_in_two_lines(tmp_path, monkeypatch, capsys):
    def busy(*given, **more):
        raise BUSY

    monkeypatch.setattr("pfed1bs.runs.run.fitting", busy)
    assert cli.main(["run", *TINY, "--device", "cpu", "--out", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-2] == f"error: the GPU does not answer ({str(BUSY).splitlines()[0]})"
    assert "--device cpu" in told[-1] and "Traceback" not in "".join(told) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "reason",
    ["CUDA error: out of memory", "CUDA driver error 2: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"],
)
def test_memory_that_ran_out_outside_of_torch_has_the_same_way_out(reason):
    with pytest.raises(Failure, match="too little memory; .*--chunk 10"), explained(CPU, "round 3", 20):
        raise RuntimeError(reason)


def test_a_gpu_that_is_too_small_or_shared_is_named_with_who_has_its_memory(monkeypatch):
    answers = {"is_available": True, "mem_get_info": (1 << 30, 8 << 30), "memory_reserved": 5 << 30}
    for name, answer in {**answers, "get_device_name": "NVIDIA Toy"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    said = "round 3: NVIDIA Toy has too little memory: 8.0 GiB, of which this process has 5.0, others 2.0; .*--chunk 10"
    with pytest.raises(Failure, match=said), explained(torch.device("cuda", 0), "round 3", 20):
        raise FULL


def test_one_client_cannot_be_divided():
    with pytest.raises(Failure, match="smaller batch or model"), explained(CPU, "evaluation", 1):
        raise FULL


def test_runs_side_by_side_may_be_fewer(monkeypatch):
    monkeypatch.setattr(gpu, "sharers", 6)
    way_out = "--chunk 10, fewer runs at once with --parallel 3, or write --device cpu; .*--resume"
    with pytest.raises(Failure, match=way_out), explained(CPU, "round 3", 20):
        raise FULL


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("error", [FULL, RuntimeError("CUDA error: out of memory\nFor debugging consider ...")])
@pytest.mark.parametrize("place, when", [("engine.scores.moved", "evaluation: "), ("runs.run.fitting", "not enough ")])
def test_memory_that_ran_out_beside_the_rounds_has_a_way_out(tmp_path, monkeypatch, capsys, place, when, error):
    def full(*given, **more):
        raise error

    monkeypatch.setattr(f"pfed1bs.{place}", full)
    assert cli.main(["run", *TINY, "--device", "cpu", "--out", str(tmp_path / "run")]) == 1
    told, hint = capsys.readouterr().err.splitlines()[-2:]
    assert told.startswith(f"error: {when}")
    assert "--chunk 1, or write --device cpu" in hint and "--resume" in hint


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), Failure("told already"), RuntimeError()])
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(RuntimeError) as found, explained(CPU, "round 3", 20):
        raise error
    assert found.value is error


def test_tf32_is_refused_where_it_means_nothing(tmp_path, capsys):
    with pytest.raises(UserError, match="means nothing on cpu"):
        multiply(CPU, True)
    assert cli.main(["run", *TINY, "--device", "cpu", "--tf32", "true", "--out", str(tmp_path / "run")]) == 2
    assert "tf32 means nothing on cpu" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_page")
def test_a_run_multiplies_exactly_unless_it_is_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert cli.main(["run", *TINY, "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert json.loads((tmp_path / "run" / "env.json").read_text())["tf32"] is False


@pytest.mark.gpu
def test_tf32_is_recorded(tmp_path):
    assert cli.main(["run", *TINY, "--device", "cuda", "--tf32", "true", "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "env.json").read_text())["tf32"] is True
    multiply(torch.device("cuda"), False)
