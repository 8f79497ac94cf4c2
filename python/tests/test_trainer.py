"""Training runs from Python equal runs of the command line."""

import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import models
import pytest

import netcl as nc
from netcl.utils.progress import ProgressBar

SETTINGS = {"steps": 6, "eval_every": 3, "eval_batches": 2, "sample_every": 0, "checkpoint_every": 2, "grad_accum": 2, "dropout": 0.1, "seed": 5}


def program():
    """Returns the command-line program: NETCL_PROGRAM, or a program built in this tree."""
    target = Path(__file__).parents[2] / "target"
    places = [os.environ.get("NETCL_PROGRAM"), target / "release" / "netcl", target / "debug" / "netcl", shutil.which("netcl")]
    return next((str(p) for p in places if p and Path(p).exists()), None)


def weights(folder):
    return (Path(folder) / "checkpoints" / "last" / "model.safetensors").read_bytes()


def losses(trainer):
    return [m["loss"] for m in trainer.history]


def begin(tmp_path, name, **settings):
    return nc.Trainer("demo-tiny", data=models.folder() / "text.txt", out=tmp_path / name, **{"device": models.device(), **SETTINGS, **settings})


def test_a_run_has_the_bits_of_the_command_line(tmp_path):
    if program() is None:
        pytest.skip("no netcl program was found")
    trainer = begin(tmp_path, "python")
    assert trainer.run() == "finished"
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    command = [program(), "train", "--preset", "demo-tiny", "--data", str(models.folder() / "text.txt"), "--out", str(tmp_path / "shell"), "--device", models.device().name]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert weights(tmp_path / "shell") == weights(trainer.folder)
    lines = [json.loads(line) for line in (tmp_path / "shell" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == losses(trainer) and len(lines) == 6


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    whole = begin(tmp_path, "whole")
    whole.run()
    events = []

    def watch(event):
        events.append(event)
        return event.kind == "step" and event["step"] >= 3

    part = begin(tmp_path, "part", callbacks=watch)
    assert part.run() == "stopped" and not part.is_finished and 3 <= part.step < 6
    kinds = [e.kind for e in events]
    assert kinds[0] == "started" and {"step", "evaluated", "saved"} <= set(kinds)
    assert events[0]["train_tokens"] > 0 and events[0].get("nothing", 7) == 7
    with pytest.raises(nc.errors.IoError, match="in use"):
        nc.Trainer.resume(part.folder)
    done = part.step
    part.close()
    with pytest.raises(nc.errors.FormatError, match="closed"):
        part.run()
    resumed = nc.Trainer.resume(part.folder)
    assert resumed.step == done and resumed.config["seed"] == 5
    assert resumed.run() == "finished" and resumed.is_finished
    assert losses(resumed) == losses(whole) and weights(resumed.folder) == weights(whole.folder)
    assert resumed.best == whole.best and whole.best[1] in (3, 6)
    resumed.close()
    with nc.Trainer.resume(resumed.folder, steps=7) as more:
        assert more.run() == "finished" and more.step == 7 and more.last_metrics["step"] == 7


def test_an_exception_of_a_callback_ends_the_run_and_is_raised(tmp_path):
    def fail(event):
        if event.kind == "step":
            raise LookupError("of the callback")

    trainer = begin(tmp_path, "run", callbacks=[fail])
    with pytest.raises(LookupError, match="of the callback"):
        trainer.run()
    trainer.callbacks.clear()
    assert trainer.run() == "finished" and len(trainer.history) == 6


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_a_run_with_a_checkpoint_to_go_on_from(tmp_path):
    code = f"""
        import os, signal
        import netcl as nc
        sent = []
        def heard(event):
            if event.kind == "step" and event["step"] >= 4 and not sent:
                sent.append(event["step"])
                os.kill(os.getpid(), signal.SIGINT)
        trainer = nc.Trainer("demo-tiny", data={str(models.folder() / "text.txt")!r}, out={str(tmp_path / "run")!r}, device={models.device().name!r},
                             steps=100_000, eval_every=0, sample_every=0, callbacks=heard)
        try:
            trainer.run()
        except KeyboardInterrupt:
            assert nc.ones(3, device=trainer.config["device"]).sum().item() == 3
            print(sent[0], trainer.step)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    sent, last = map(int, done.stdout.split())
    assert sent <= last <= sent + 2
    with nc.Trainer.resume(tmp_path / "run", steps=last + 2, warmup=2) as trainer:
        assert trainer.step == last and trainer.run() == "finished"


def test_settings_are_those_of_the_flags():
    settings = nc.Trainer.settings("char", lr=1e-4, betas=(0.9, 0.98), dtype=nc.bfloat16, data=["a", Path("b")])
    assert (settings["lr"], settings["betas"], settings["dtype"], settings["data"]) == (1e-4, [0.9, 0.98], "bf16", ["a", "b"])
    assert settings["layers"] == nc.Trainer.settings("char")["layers"] and "char" in nc.Trainer.presets()
    for wrong, words in [({"stepz": 1}, "stepz"), ({"steps": -1}, "steps|invalid value"), ({"lr": "fast"}, "invalid type"), ({"batch": 0}, "batch"), ({"preset": "huge"}, "huge")]:
        with pytest.raises(nc.errors.FormatError, match=words):
            nc.Trainer.settings(**wrong)


def test_what_cannot_begin_says_why(tmp_path):
    with pytest.raises(nc.errors.FormatError, match="data"):
        nc.Trainer("demo-tiny", device=models.device(), data=[], out=tmp_path / "a")
    with pytest.raises(nc.errors.FormatError, match="run folder"):
        nc.Trainer.resume(tmp_path / "nowhere")
    with pytest.raises(nc.errors.NetclError):
        nc.Trainer("demo-tiny", device=models.device(), data=tmp_path / "nothing.txt", out=tmp_path / "b")
    with pytest.raises(nc.errors.NetclError):
        nc.Trainer("demo-tiny", device=models.device(), data=models.folder() / "text.txt", out=models.folder() / "run")


def test_the_weights_of_a_run_are_there(tmp_path):
    trainer = begin(tmp_path, "run", dropout=0.0, device=None)
    trainer.run()
    state, files = trainer.state_dict(), nc.load(Path(trainer.folder) / "checkpoints" / "last" / "model.safetensors", device=models.device())
    assert list(state) and set(state) == set(files) and all(state[n]._bytes() == files[n]._bytes() for n in state)
    decoder = nc.nn.Decoder.from_pretrained(trainer.folder, device=models.device())
    parameters = trainer.parameters()
    assert [n for n, _ in decoder.named_parameters()] == list(parameters)
    assert all(p._bytes() == parameters[n]._bytes() for n, p in decoder.named_parameters())
    assert trainer.config["device"] == models.device().name and trainer.tokens_per_s > 0 and repr(trainer).startswith("Trainer(")


def test_a_bar_shows_rate_time_left_and_what_else():
    now = [0.0]
    shown = io.StringIO()
    bar = ProgressBar(10, epoch=2, epochs=3, width=10, file=shown, clock=lambda: now[0])
    now[0] = 2.0
    bar.update(4, info={"loss": 0.123456, "acc": 1})
    assert bar.line() == "epoch 2/3 |████······| 4/10 40% 2 it/s  ETA 3s  loss 0.1235  acc 1"
    assert shown.getvalue() == ""  # without a terminal, a line every ten seconds
    now[0] = 12.0
    bar.update(info={"it/s": 5.0})
    assert bar.step == 5 and bar.line().endswith("5 it/s  ETA 1s  loss 0.1235  acc 1") and shown.getvalue().count("\n") == 1
    with bar:
        bar.update(10)
    assert shown.getvalue().count("\n") == 2

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    drawn = Terminal()
    assert list(ProgressBar(3, file=drawn, clock=lambda: now[0]).wrap("abc")) == ["a", "b", "c"]
    assert drawn.getvalue().startswith("\r") and drawn.getvalue().endswith("\n") and "3/3 100%" in drawn.getvalue()
    with pytest.raises(ValueError, match="total"):
        ProgressBar(-1)
    assert ProgressBar(0).line().count("0/0 100%") == 1
