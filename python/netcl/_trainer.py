"""Training runs from Python, as with ``netcl train``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ._device import named
from ._files import tensor_of
from ._netcl import Device, Tensor, Training, default_device, presets, train_config
from .distributed._ranks import mpi_group, own_device
from .utils.progress import ProgressBar

Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Event:
    """An event of a run: ``started``, ``step``, ``evaluated``, ``sample``, ``saved`` or ``memory``. ``event["loss"]`` returns a value."""

    kind: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default if the event does not have it."""
        return self.values.get(name, default)


Callback = Callable[[Event], Any]


def _settings(settings: Mapping[str, Any]) -> str:
    """Converts settings, named like the long flags, to JSON."""

    def plain(name: str, value: Any) -> Any:
        if name == "device":
            return named(value)
        if name == "dtype":
            return getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
        if name in ("data", "freeze"):
            return [os.fspath(v) for v in ([value] if isinstance(value, (str, os.PathLike)) else value)]
        if name in ("init", "tokenizer"):
            return os.fspath(value)
        return list(value) if isinstance(value, tuple) else value

    return json.dumps({name: plain(name, value) for name, value in settings.items() if value is not None})


class _Bar:
    def __init__(self) -> None:
        self.bar: Optional[ProgressBar] = None

    def __call__(self, event: Event) -> None:
        if event.kind == "started":
            self.bar = ProgressBar(event["steps"])
            self.bar.starts_at(event["from_step"])
        elif self.bar is not None and event.kind == "step":
            self.bar.update(event["step"], {"loss": event["loss"], "tokens/s": event["tokens_per_s"]})
        elif self.bar is not None and event.kind == "evaluated":
            self.bar.note({"val": event["loss"]})

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class _Ranks:
    """Devices and group of a run: none for one device."""

    def __init__(self, devices: Optional[Sequence[Any]], shares: Union[None, str, Sequence[float]], settings: Dict[str, Any]) -> None:
        if isinstance(devices, (str, Device)):
            raise TypeError("Trainer: devices is one device, expected a list such as devices=['pocl:0', 'nvidia:0']; for one device, pass device=…")
        names = [named(d) for d in devices or ()]
        if names and settings.get("device") is not None:
            raise TypeError("Trainer: device and devices are both given, expected one of them")
        self.group = mpi_group()
        self.shares = shares if shares is None or isinstance(shares, str) else ",".join(str(s) for s in shares)
        if self.group is not None:
            settings["device"] = own_device(names) if names or settings.get("device") is None else settings["device"]
            self.devices: List[str] = []
        else:
            self.devices = names
            if names:
                settings["device"] = names[0]

    def training(self, settings: str, file: Optional[str], out: Optional[str], resume: bool) -> Training:
        """Starts the run."""
        if self.shares is not None and len(self.devices) < 2 and self.group is None:
            raise TypeError("Trainer: shares needs several devices; pass devices=[…]")
        return Training(settings, file, out, resume, (self.devices, self.shares), self.group)


class Trainer:
    """A training run. It has the same bits as ``netcl train`` with the same settings and seed.

    Settings are the long flags with ``_`` for ``-``: ``preset``, ``data`` (files, folders, patterns), ``steps``, ``batch``, ``lr``, ``width``,
    ``device`` [default: netcl's default device], ``seed``, ``init`` (a model to start from) and so on. ``Trainer.settings()`` returns all of them
    with their values. ``config`` is a TOML file that overrides the preset; settings override the file. The run folder is ``out`` [default:
    ``runs/<preset>-<n>``]. A callback is called with each ``Event``. If it returns a true value, the run ends after the step, with a checkpoint.
    ``progress`` draws a progress bar.

    ``devices`` trains on several devices, which share ``batch``; a device may appear twice. ``pipeline=P`` divides the layers between P of them, ``zero=1``
    or ``2`` divides the optimizer's state, and ``shares`` (``equal``, ``speed`` or numbers) divides the batch, as with the flags of these names. Under
    ``mpirun`` or ``srun``, each process creates the same trainer and is a rank; ``devices`` are then those of each machine. Only rank 0 calls the
    callbacks.

    ``netcl.LLM(trainer.folder)`` and ``netcl.nn.Decoder.from_pretrained(trainer.folder)`` open the trained model.
    """

    def __init__(
        self,
        preset: Optional[str] = None,
        *,
        data: Union[None, Path, Sequence[Path]] = None,
        out: Optional[Path] = None,
        config: Optional[Path] = None,
        callbacks: Union[None, Callback, Sequence[Callback]] = None,
        progress: bool = False,
        devices: Optional[Sequence[Any]] = None,
        shares: Union[None, str, Sequence[float]] = None,
        **settings: Any,
    ) -> None:
        ranks = _Ranks(devices, shares, settings)
        if config is None and settings.get("device") is None:
            settings["device"] = default_device()
        given = _settings({"preset": preset, "data": data, **settings})
        self._begin(ranks.training(given, None if config is None else os.fspath(config), None if out is None else os.fspath(out), False), callbacks, progress, ranks)

    @classmethod
    def resume(
        cls,
        folder: Path,
        *,
        callbacks: Union[None, Callback, Sequence[Callback]] = None,
        progress: bool = False,
        devices: Optional[Sequence[Any]] = None,
        shares: Union[None, str, Sequence[float]] = None,
        **settings: Any,
    ) -> "Trainer":
        """Resumes the run in a folder, with the same bits as an uninterrupted run. Some settings may change: more ``steps``, another ``device``, or
        other ``devices``.
        """
        trainer = cls.__new__(cls)
        ranks = _Ranks(devices, shares, settings)
        trainer._begin(ranks.training(_settings(settings), None, os.fspath(folder), True), callbacks, progress, ranks)
        return trainer

    def _begin(self, training: Training, callbacks: Union[None, Callback, Sequence[Callback]], progress: bool, ranks: "_Ranks") -> None:
        self._training = training
        self.callbacks: List[Callback] = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
        self.progress = progress
        self._leads = ranks.group is None or ranks.group.rank == 0

    @staticmethod
    def presets() -> List[str]:
        """Returns the names of the presets."""
        return presets()

    @staticmethod
    def settings(preset: Optional[str] = None, *, config: Optional[Path] = None, **settings: Any) -> Dict[str, Any]:
        """Returns all settings that a run with these settings would use."""
        made: Dict[str, Any] = json.loads(train_config(_settings({"preset": preset, **settings}), None if config is None else os.fspath(config)))
        return made

    def run(self, detect_anomaly: bool = False) -> str:
        """Trains until all steps are complete (``finished``), or a callback requests a stop (``stopped``).

        Ctrl-C ends the run after the current step and writes a checkpoint, from which ``resume`` continues. ``detect_anomaly`` checks every result
        and names the operation that produces the first NaN; this is slow.
        """
        bar = _Bar()
        callbacks: List[Callback] = [] if not self._leads else [*self.callbacks, bar] if self.progress else self.callbacks

        def tell(kind: str, values: str) -> bool:
            event = Event(kind, json.loads(values))
            return any([bool(callback(event)) for callback in callbacks])

        try:
            return self._training.run(tell if callbacks else None, detect_anomaly)
        finally:
            bar.close()

    @property
    def folder(self) -> str:
        """The run folder: checkpoints, ``metrics.jsonl``, ``report.html``."""
        return os.fspath(self._training.folder)

    @property
    def config(self) -> Dict[str, Any]:
        """All settings."""
        made: Dict[str, Any] = json.loads(self._training.config())
        return made

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self._training.state()[0]

    @property
    def is_finished(self) -> bool:
        """Whether all steps are complete."""
        return self._training.state()[1]

    @property
    def best(self) -> Optional[Tuple[float, int]]:
        """The lowest validation loss and its step."""
        return self._training.state()[2]

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over the steps of this session; NaN before the first step."""
        return self._training.state()[3]

    @property
    def last_metrics(self) -> Optional[Dict[str, Any]]:
        """Metrics of the last step, or ``None`` before the first step."""
        made: Optional[Dict[str, Any]] = json.loads(self._training.last_metrics())
        return made

    @property
    def history(self) -> List[Dict[str, Any]]:
        """Metrics of every step so far, from ``metrics.jsonl``."""
        path = os.path.join(self.folder, "metrics.jsonl")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]

    def parameters(self) -> Dict[str, Tensor]:
        """Returns the model's parameters by name, off the tape. They share memory with the run."""
        return dict(self._training.parameters())

    def state_dict(self) -> Dict[str, Tensor]:
        """Returns a copy of the weights under the names that the family's files use."""
        device = self.config["device"]
        return {name: tensor_of(name, dtype, shape, data, device) for name, dtype, shape, data in self._training.tensors()}

    def close(self) -> None:
        """Frees the model and releases the run folder, which no other trainer can use before. The end of ``with`` does the same."""
        self._training.close()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Trainer(folder={self.folder!r})"


__all__ = ["Callback", "Event", "Trainer"]
