"""Training runs: what ``netcl train`` does, from Python."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ._device import named
from ._files import tensor_of
from ._netcl import Tensor, Training, default_device, presets, train_config
from .utils.progress import ProgressBar

Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Event:
    """Something that happened in a run: ``started``, ``step``, ``evaluated``, ``sample``, ``saved`` or ``memory``, with its values: ``event["loss"]``."""

    kind: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A value, or the default where there is none."""
        return self.values.get(name, default)


Callback = Callable[[Event], Any]


def _settings(settings: Mapping[str, Any]) -> str:
    """Settings by the names of the long flags, as JSON."""

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


class Trainer:
    """A training run: ``netcl train`` with the same settings and seed gives the same bits.

    Settings are the long flags with ``_`` for ``-``: ``preset``, ``data`` (files, folders, patterns), ``steps``, ``batch``, ``lr``, ``width``, ``device``, ``seed``, ``init`` (a model
    to start from) and so on; ``Trainer.settings()`` shows all with their values. The device is netcl's default one where none is named. ``config`` is a TOML file that stands between preset and settings. The run folder is
    ``out``, or ``runs/<preset>-<n>``. A callback is called with each ``Event``; one that returns something true ends the run behind the step, with a checkpoint.
    ``progress`` draws a bar.

    ``netcl.LLM(trainer.folder)`` and ``netcl.nn.Decoder.from_pretrained(trainer.folder)`` have the model that came out.
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
        **settings: Any,
    ) -> None:
        if config is None and settings.get("device") is None:
            settings["device"] = default_device()
        given = _settings({"preset": preset, "data": data, **settings})
        self._begin(Training(given, None if config is None else os.fspath(config), None if out is None else os.fspath(out)), callbacks, progress)

    @classmethod
    def resume(cls, folder: Path, *, callbacks: Union[None, Callback, Sequence[Callback]] = None, progress: bool = False, **settings: Any) -> "Trainer":
        """Goes on with the run in a folder, to the bit as if it had not ended. Some settings may be others: more ``steps``, another ``device``."""
        trainer = cls.__new__(cls)
        trainer._begin(Training(_settings(settings), None, os.fspath(folder), True), callbacks, progress)
        return trainer

    def _begin(self, training: Training, callbacks: Union[None, Callback, Sequence[Callback]], progress: bool) -> None:
        self._training = training
        self.callbacks: List[Callback] = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
        self.progress = progress

    @staticmethod
    def presets() -> List[str]:
        """Names of the presets."""
        return presets()

    @staticmethod
    def settings(preset: Optional[str] = None, *, config: Optional[Path] = None, **settings: Any) -> Dict[str, Any]:
        """All settings of a run that these would begin."""
        made: Dict[str, Any] = json.loads(train_config(_settings({"preset": preset, **settings}), None if config is None else os.fspath(config)))
        return made

    def run(self, detect_anomaly: bool = False) -> str:
        """Trains until all steps are done: ``finished``, or ``stopped`` where a callback asked for that.

        Ctrl-C ends the run behind the step it is in and writes a checkpoint, from which ``resume`` goes on. ``detect_anomaly`` checks every result and names the operation that
        gives the first NaN; slow.
        """
        bar = _Bar()
        callbacks: List[Callback] = [*self.callbacks, bar] if self.progress else self.callbacks

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
        """Steps done."""
        return self._training.state()[0]

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done."""
        return self._training.state()[1]

    @property
    def best(self) -> Optional[Tuple[float, int]]:
        """The lowest validation loss, and its step."""
        return self._training.state()[2]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second over the steps of this session; NaN before the first."""
        return self._training.state()[3]

    @property
    def last_metrics(self) -> Optional[Dict[str, Any]]:
        """What was measured of the last step; ``None`` before the first."""
        made: Optional[Dict[str, Any]] = json.loads(self._training.last_metrics())
        return made

    @property
    def history(self) -> List[Dict[str, Any]]:
        """What was measured of every step so far: ``metrics.jsonl``."""
        path = os.path.join(self.folder, "metrics.jsonl")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]

    def parameters(self) -> Dict[str, Tensor]:
        """The model's parameters by name, off the tape; they share memory with the run's."""
        return dict(self._training.parameters())

    def state_dict(self) -> Dict[str, Tensor]:
        """A copy of the weights under the names of the family's files."""
        device = self.config["device"]
        return {name: tensor_of(name, dtype, shape, data, device) for name, dtype, shape, data in self._training.tensors()}

    def close(self) -> None:
        """Frees the model, and the run folder for others: as long as a trainer has it, no other one goes on with it. At the end of ``with`` as well."""
        self._training.close()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Trainer(folder={self.folder!r})"


__all__ = ["Callback", "Event", "Trainer"]
