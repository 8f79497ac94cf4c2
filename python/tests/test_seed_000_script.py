"""Seed 000 (OCL-LLM), rows 102 to 109 of the table of promises: the training script."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import seeds

import netcl as nc
from netcl.compat.ocl_llm import OclTensor
from netcl.compat.ocl_llm.checkpoint import read_checkpoint
from netcl.compat.ocl_llm.script import main
from netcl.compat.ocl_llm.settings import CONFIG

SCRIPT = Path(__file__).parents[2] / "examples" / "ocl_llm" / "ocl_framework.py"
SMALL = ["--max_len", "8", "--embed_dim", "16", "--num_heads", "2", "--d_ff", "32", "--num_layers", "1", "--batch_size", "32"]
TEXT = "the quick brown fox jumps over the lazy dog. " * 30


@pytest.fixture
def place(tmp_path):
    """A folder with the script and its text."""
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "input.txt").write_text(TEXT)
    return tmp_path


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONDONTWRITEBYTECODE": "1"}


def command(flags):
    device = [] if "--gpu_id" in flags else ["--gpu_id", nc.default_device().name]
    return [sys.executable, "-u", "ocl_framework.py", *device, *flags]


def run(place, *flags):
    """Runs the script. Returns its exit status, output and errors without the progress bar."""
    done = subprocess.run(command(flags), capture_output=True, text=True, timeout=600, cwd=place, env=environment())
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done.returncode, done.stdout, [line for line in done.stderr.splitlines() if line.startswith(("error", "warning", "interrupted", "ocl_framework"))]


def losses(shown):
    return re.findall(r"epoch (\d+): validation loss (\S+);", shown)


def test_row_102_the_script_runs_and_a_missing_text_is_one_line(place):
    status, shown, errors = run(place, *SMALL, "--num_epochs", "1", "--gpu_id", "0")
    assert status == 0 and not errors and f"device {nc.devices()[0]}" in shown and [e for e, _ in losses(shown)] == ["1"]
    (place / "input.txt").unlink()
    status, shown, errors = run(place, *SMALL)
    assert status == 1 and len(errors) == 1 and "input.txt" in errors[0] and "--data_file" in errors[0]
    (place / "short.txt").write_text("abc")
    (place / "latin.txt").write_bytes(b"Gr\xfc\xdfe " * 200)
    for name, word in (("short.txt", "3 characters"), ("latin.txt", "UTF-8"), (".", "directory")):
        status, _, errors = run(place, *SMALL, "--data_file", name)
        assert status == 1 and len(errors) == 1 and word in errors[0]


@pytest.mark.parametrize("gpu", ["99", "-1"])
def test_row_103_an_invalid_gpu_is_device_0_with_a_warning(place, gpu):
    status, shown, errors = run(place, *SMALL, "--num_epochs", "1", "--gpu_id", gpu)
    assert status == 0 and f"device {nc.devices()[0]}" in shown and len(errors) == 1 and "using device 0" in errors[0]


def test_row_103_an_unknown_name_is_one_line(place):
    status, _, errors = run(place, *SMALL, "--gpu_id", "nothing:7")
    assert status == 1 and len(errors) == 1 and "nothing:7" in errors[0]


def test_row_104_a_checkpoint_alone_resumes_with_its_settings(place):
    status, shown, errors = run(place, *SMALL, "--num_epochs", "4", "--lr", "0.003", "--save_dir", "whole")
    whole = losses(shown)
    assert status == 0 and len(whole) == 4
    run(place, *SMALL, "--num_epochs", "2", "--lr", "0.003")
    # The checkpoint has the shapes and settings; only the number of epochs is new.
    status, shown, errors = run(place, "--load_checkpoint", "checkpoints/test_model.npz", "--num_epochs", "4", "--save_dir", "more")
    assert status == 0 and not errors and "resuming after epoch 2" in shown and losses(shown) == whole[2:]
    one, two = read_checkpoint(str(place / "whole/test_model.npz"))[1], read_checkpoint(str(place / "more/test_model.npz"))[1]
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)
    status, shown, _ = run(place, "--load_checkpoint", "checkpoints/test_model.npz")
    assert status == 0 and "nothing to train" in shown and "inference:" in shown and not losses(shown)


def test_row_104_flags_override_the_checkpoint_except_its_shapes(place):
    run(place, *SMALL, "--num_epochs", "1")
    resume = ["--load_checkpoint", "checkpoints/test_model.npz", "--num_epochs", "2", "--save_dir", "more"]
    kept, changed = run(place, *resume), run(place, *resume, "--lr", "0.02", "--batch_size", "16")
    assert "learning rate 0.001" in kept[1] and "learning rate 0.02" in changed[1] and losses(kept[1]) != losses(changed[1])
    words, arrays = read_checkpoint(str(place / "more/test_model.npz"))
    assert words["config"]["lr"] == 0.02 == words["optimizer"]["lr"] and words["config"]["batch_size"] == 16
    assert run(place, *resume, *SMALL)[0] == 0
    for name, value, stored in (("max_len", "16", "8"), ("embed_dim", "32", "16"), ("num_heads", "4", "2"), ("d_ff", "64", "32"), ("num_layers", "3", "1")):
        status, _, errors = run(place, *resume, f"--{name}", value)
        assert status == 2 and len(errors) == 1 and f"--{name} is {value}" in errors[0] and f"{name} {stored}" in errors[0]


def test_row_104_a_bad_checkpoint_or_setting_is_one_line(place):
    (place / "damaged.npz").write_bytes(b"PK\x03\x04 damaged")
    np.savez(place / "other.npz", a=np.zeros(3))
    for name in ("damaged.npz", "other.npz", "nothing.npz", "."):
        status, _, errors = run(place, "--load_checkpoint", name)
        assert status in (1, 2) and len(errors) == 1 and name in errors[0]
    for flag, value in (
        ("batch_size", "0"), ("batch_size", "-1"), ("batch_size", "two"), ("max_len", "0"), ("num_epochs", "0"), ("num_layers", "0"), ("lr", "nan"),
        ("lr", "-1"), ("val_split", "1"), ("num_heads", "3"), ("nothing", "1"),
    ):  # fmt: skip
        status, _, errors = run(place, f"--{flag}", value)
        assert status == 2 and len(errors) == 1 and flag in errors[0], (flag, errors)


def test_row_104_an_interrupted_run_loses_nothing(place):
    with subprocess.Popen(command([*SMALL, "--num_epochs", "10000"]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place, env=environment()) as process:
        for line in process.stdout:
            if line.startswith("epoch 2:"):
                process.send_signal(signal.SIGINT)
                break
        shown, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in errors
    found = [line for line in errors.splitlines() if line.startswith("interrupted")]
    assert len(found) == 1 and "test_model.interrupted.npz" in found[0]
    path = re.search(r"--load_checkpoint (\S+)", found[0]).group(1)
    done = read_checkpoint(str(place / path))[0]["epoch"] + 1
    status, shown, errors = run(place, "--load_checkpoint", path, "--num_epochs", str(done + 1))
    assert status == 0 and [e for e, _ in losses(shown)] == [str(done + 1)] and done >= 2 and not errors


def test_the_script_runs_in_a_thread_of_another_program(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    found = []
    device = nc.default_device().name
    thread = threading.Thread(target=lambda: found.append(main([*SMALL, "--num_epochs", "1", "--gpu_id", device])))
    thread.start()
    thread.join()
    assert found == [0] and losses(capsys.readouterr().out) and not OclTensor._ocl_initialized
    (place / "input.txt").unlink()
    assert main([*SMALL, "--gpu_id", device]) == 1 and "input.txt" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--nothing"])


def test_row_105_checkpoints_are_written_to_save_dir(place):
    status, _, _ = run(place, *SMALL, "--num_epochs", "1", "--save_dir", str(place / "a" / "b"), "--checkpoint_filename", "mine.npz")
    assert status == 0 and (place / "a" / "b" / "mine.npz").exists() and not (place / "checkpoints").exists()
    status, _, errors = run(place, *SMALL, "--num_epochs", "1", "--save_dir", "input.txt")
    assert status == 1 and len(errors) == 1 and "input.txt" in errors[0]


def test_row_106_a_checkpoint_is_written_when_validation_improves(place):
    # The text ends with other words, so that the model first learns it and then forgets its end.
    (place / "input.txt").write_text("abcabcabd " * 60 + "the end differs from it, " * 4)
    _, shown, _ = run(place, *SMALL, "--num_epochs", "5", "--lr", "0.02")
    found = [float(loss) for _, loss in losses(shown)]
    words = read_checkpoint(str(place / "checkpoints/test_model.npz"))[0]
    assert words["epoch"] == int(np.argmin(found)) and abs(words["best_val_loss"] - min(found)) < 1e-4 and int(np.argmin(found)) < 4


def test_row_107_every_setting_of_the_config_is_a_flag(place):
    named = re.findall(r"^\*   ((?:`\w+`(?:, )?)+):", seeds.section("000", "Konfiguration"), re.MULTILINE)
    names = [name for part in named for name in re.findall(r"\w+", part)]
    assert len(names) == 12 and set(names) <= set(CONFIG)
    shown = subprocess.run(command(["--help"]), capture_output=True, text=True, cwd=place, env=environment()).stdout
    script = SCRIPT.read_text(encoding="utf-8")
    for name in names:
        assert f"--{name} " in shown and f'"{name}":' in script
    (place / "ocl_framework.py").write_text(script.replace('"num_epochs": 5', '"num_epochs": 2').replace('"max_len": 64', '"max_len": 8'))
    _, shown, _ = run(place, "--embed_dim", "16")
    assert len(losses(shown)) == 2 and read_checkpoint(str(place / "checkpoints/test_model.npz"))[0]["config"]["max_len"] == 8


def test_row_108_samples_are_shown_during_and_after_the_training(place):
    _, shown, _ = run(place, *SMALL, "--num_epochs", "2")
    assert len(re.findall(r"^epoch \d+: .*; 'the quic.{24}'$", shown, re.MULTILINE)) == 2
    assert len(re.findall(r"^inference: 'the quic.{24}'$", shown, re.MULTILINE)) == 1


def test_row_109_the_commands_of_the_seed_run(place):
    (block,) = seeds.listings(seeds.section("000", "Training starten"), "bash")
    assert block.count("python ocl_framework.py") == 4
    script = SCRIPT.read_text(encoding="utf-8").replace('"max_len": 64', '"max_len": 16').replace('"num_epochs": 5', '"num_epochs": 1')
    (place / "ocl_framework.py").write_text(script)
    python = place / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    # The folder of the example may not be writable.
    block = block.replace("/pfad/zu/meinen", str(place / "pfad"))
    env = {**environment(), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", block], capture_output=True, text=True, cwd=place, env=env, timeout=600)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert (place / "checkpoints/test_model.npz").exists() and (place / "pfad/checkpoints/test_model.npz").exists()
    assert "resuming after epoch 1 of checkpoints/test_model.npz" in done.stdout
    names = subprocess.run([sys.executable, "-c", "from ocl_framework import OclTensor, ocl_initialize, SimpleModel, FunctionContext, HAS_BMM_BATCHED"], cwd=place, env=env, capture_output=True, text=True)
    assert names.returncode == 0, names.stderr
