"""Language models from files: text in, text out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union, overload

from ._dtype import DTYPES, DType
from ._netcl import Model, Stream

Path = Union[str, "os.PathLike[str]"]
Prompt = Union[str, Sequence[int]]
Stops = Union[None, str, Sequence[str]]
Message = Mapping[str, str]
Progress = Callable[[str, str, int, int], Any]


@dataclass(frozen=True)
class Generation:
    """What a text became; ``str()`` of it is the text."""

    text: str
    """New text."""
    tokens: List[int]
    """Its tokens, without the one that ended it."""
    finish: str
    """Why it ended: ``end`` (a token that ends texts), ``stop`` (a stop text), ``length``, ``context`` (it is full) or ``stopped``."""
    prompt_tokens: int
    """Tokens of the prompt."""
    reused_tokens: int
    """Of those, tokens that were in the cache already."""
    prompt_seconds: float
    """How long the prompt took."""
    seconds: float
    """How long the new tokens took."""

    def __str__(self) -> str:
        return self.text

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second; the first one comes with the prompt."""
        return max(len(self.tokens) - 1, 0) / max(self.seconds, 1e-9)


class TextStream:
    """Text as it comes, in whole characters. ``stop()`` ends it behind the token it is at; ``result`` is there at the end."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            text = next(self._stream)[1]
            if text:
                return text

    def stop(self) -> None:
        """Ends it behind the token it is at."""
        self._stream.stop()

    @property
    def result(self) -> Optional[Generation]:
        """What the text became; ``None`` as long as it goes on."""
        return _results(self._stream)[0]


def _results(stream: Stream) -> List[Optional[Generation]]:
    return [None if made is None else Generation(**made) for made in stream.results()]


def _finished(stream: Stream) -> List[Generation]:
    for _ in stream:
        pass
    return [made for made in _results(stream) if made is not None]


class LLM:
    """A language model: a GGUF file, a folder in the Hugging Face layout, or the folder of a run of ``netcl.Trainer``.

    Its matrices stay quantised as the file has them. ``device`` is one, or several, among which the layers are divided (``layers`` says how many each has); ``dtype`` is the
    storage of what is not quantised, ``context`` the tokens it can look at. ``adapters`` are LoRA adapters, paths or pairs of path and factor. ``progress(name, device, done,
    total)`` is called for each parameter that is loaded.

    How tokens are drawn is said by keyword arguments of each call, by llama.cpp's names: ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``typical_p``, ``top_n_sigma``,
    ``repeat_penalty``, ``repeat_last_n``, ``presence_penalty``, ``frequency_penalty``, ``dry_…``, ``xtc_…``, ``dynatemp_…``, ``mirostat…``, ``logit_bias``, ``samplers``, ``seed``,
    or ``greedy=True``; what is not given is as the model's files say it, and the seed is 0. ``grammar``, ``regex`` or ``json_schema`` say what the text has to follow.

    The model is in a thread of its own: calls of several threads come one after the other. Ctrl-C ends a call at once; the model ends behind the token it is at.
    """

    def __init__(
        self,
        path: Path,
        device: Any = None,
        *,
        dtype: Any = None,
        context: Optional[int] = None,
        dequantise: bool = False,
        activations: Optional[str] = None,
        layers: Optional[Sequence[int]] = None,
        adapters: Sequence[Union[Path, Tuple[Path, float]]] = (),
        progress: Optional[Progress] = None,
    ) -> None:
        if device is None:
            from ._netcl import default_device

            device = default_device()
        devices = list(device) if isinstance(device, (list, tuple)) else device.split(",") if isinstance(device, str) else [device]
        pairs = [a if isinstance(a, tuple) else (a, 1.0) for a in adapters]
        self._model = Model(os.fspath(path), devices, dtype, context, dequantise, activations, None if layers is None else list(layers), pairs, progress)

    @overload
    def generate(
        self, prompt: str = ..., n_predict: Optional[int] = ..., *, stop: Stops = ..., ignore_eos: bool = ..., special: bool = ..., parallel: int = ..., **sampling: Any
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        n_predict: Optional[int] = ...,
        *,
        stop: Stops = ...,
        ignore_eos: bool = ...,
        special: bool = ...,
        parallel: int = ...,
        **sampling: Any,
    ) -> List[Generation]: ...

    def generate(
        self,
        prompt: Union[str, Sequence[Prompt]] = "",
        n_predict: Optional[int] = 256,
        *,
        stop: Stops = None,
        ignore_eos: bool = False,
        special: bool = False,
        parallel: int = 8,
        **sampling: Any,
    ) -> Union[Generation, List[Generation]]:
        """Goes on behind a prompt; behind several of them, texts or lists of token ids, at the same time, at most ``parallel``.

        ``n_predict`` is new tokens at most, ``None`` for as many as the context takes. ``stop`` ends a text before a text, ``ignore_eos`` goes on behind tokens that end one,
        ``special`` reads names of control tokens in prompts as those.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not prompts:
            return []
        made = _finished(self._model.generate(prompts, n_predict, stop, ignore_eos, special, parallel, sampling))
        return made[0] if isinstance(prompt, str) else made

    def stream(
        self, prompt: Prompt = "", n_predict: Optional[int] = 256, *, stop: Stops = None, ignore_eos: bool = False, special: bool = False, **sampling: Any
    ) -> TextStream:
        """The same for one prompt, as an iterator of text as it comes."""
        return TextStream(self._model.generate([prompt], n_predict, stop, ignore_eos, special, 1, sampling))

    def chat(
        self,
        messages: Union[str, Sequence[Message]],
        n_predict: Optional[int] = None,
        *,
        system: Optional[str] = None,
        stop: Stops = None,
        ignore_eos: bool = False,
        **sampling: Any,
    ) -> Generation:
        """The answer to what a user says, or to the last of several messages, each a dictionary of ``role`` (system, user, assistant) and ``content``.

        What the model has read of them in an earlier call is not read again. ``conversation`` keeps the messages.
        """
        return _finished(self._answer(messages, system, n_predict, stop, ignore_eos, sampling))[0]

    def chat_stream(
        self,
        messages: Union[str, Sequence[Message]],
        n_predict: Optional[int] = None,
        *,
        system: Optional[str] = None,
        stop: Stops = None,
        ignore_eos: bool = False,
        **sampling: Any,
    ) -> TextStream:
        """The same as an iterator of text as it comes."""
        return TextStream(self._answer(messages, system, n_predict, stop, ignore_eos, sampling))

    def _answer(
        self, messages: Union[str, Sequence[Message]], system: Optional[str], n_predict: Optional[int], stop: Stops, ignore_eos: bool, sampling: Dict[str, Any]
    ) -> Stream:
        given: Sequence[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        pairs = [(m["role"], m["content"]) for m in given]
        if system is not None:
            pairs.insert(0, ("system", system))
        return self._model.answer(pairs, n_predict, stop, ignore_eos, sampling)

    def conversation(self, system: Optional[str] = None) -> "Conversation":
        """A conversation that keeps what was said."""
        return Conversation(self, system)

    def embed(self, text: Union[Prompt, Sequence[str]], pooling: str = "mean", normalise: bool = True, special: bool = False) -> Any:
        """Vectors of texts, from the hidden states behind the last norm: (C,), or (n, C) for a list of texts, a NumPy array of float32.

        ``pooling`` is ``mean`` over the tokens, ``last`` for the last one's, or ``none`` for all of them (T, C) of one text; vectors have length 1 unless ``normalise`` is off.
        """
        import numpy as np

        if pooling not in ("mean", "last", "none"):
            raise ValueError(f"embed: pooling {pooling!r}, expected mean, last or none")

        def one(prompt: Prompt) -> Any:
            rows = np.frombuffer(self._model.features(prompt, special), dtype=np.float32).reshape(-1, self.width)
            vector = rows if pooling == "none" else rows.mean(axis=0) if pooling == "mean" else rows[-1]
            return vector / np.linalg.norm(vector, axis=-1, keepdims=True) if normalise else vector.copy()

        several = not isinstance(text, str) and (len(text) == 0 or not isinstance(text[0], int))
        if not several:
            return one(text)  # type: ignore[arg-type]
        if pooling == "none":
            raise ValueError("embed: pooling none is for one text")
        return np.stack([one(t) for t in text]) if len(text) else np.zeros((0, self.width), dtype=np.float32)  # type: ignore[arg-type]

    def tokenize(self, text: str, special: bool = False, prompt: bool = False) -> List[int]:
        """Token ids of a text; with ``prompt``, behind what the tokenizer puts before every text."""
        return self._model.tokenize(text, special, prompt)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._model.detokenize(list(ids))

    @property
    def path(self) -> str:
        """The file, or the folder with its ``config.json``."""
        return os.fspath(self._model.path)

    @property
    def family(self) -> str:
        """The family, by its ``model_type``."""
        return self._model.family

    @property
    def context(self) -> int:
        """Tokens that it can look at."""
        return self._model.context

    @property
    def trained_context(self) -> int:
        """Tokens that its files say it can look at."""
        return self._model.trained_context

    @property
    def vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.vocab

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self._model.width

    @property
    def parameters(self) -> int:
        """Number of its parameters."""
        return self._model.parameters

    @property
    def dtype(self) -> DType:
        """Storage of what is not quantised."""
        return DTYPES[self._model._dtype]

    @property
    def device(self) -> str:
        """Its device, or several between commas."""
        return self._model.device

    @property
    def has_chat_template(self) -> bool:
        """Whether its files say how conversations are written, which ``chat`` needs."""
        return self._model.has_chat_template

    def close(self) -> None:
        """Frees the model, behind what it is at. It is freed as well when nothing refers to it any more."""
        self._model.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.path!r}, family={self.family!r}, parameters={self.parameters}, context={self.context}, dtype={self.dtype}, device={self.device!r})"


class Conversation:
    """What was said so far, and what is said to it. ``messages`` may be changed between two calls."""

    def __init__(self, llm: LLM, system: Optional[str] = None) -> None:
        self.llm = llm
        self.messages: List[Dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]

    def say(self, text: str, n_predict: Optional[int] = None, **settings: Any) -> Generation:
        """Says something and gives the answer. Where that fails, nothing was said."""
        asked = [*self.messages, {"role": "user", "content": text}]
        answer = self.llm.chat(asked, n_predict, **settings)
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        return answer

    def stream(self, text: str, n_predict: Optional[int] = None, **settings: Any) -> Iterator[str]:
        """The same, as text as it comes. Both are kept when the iterator is at its end."""
        asked = [*self.messages, {"role": "user", "content": text}]
        stream = self.llm.chat_stream(asked, n_predict, **settings)
        yield from stream
        made = stream.result
        self.messages = [*asked, {"role": "assistant", "content": "" if made is None else made.text}]

    def clear(self) -> None:
        """Forgets what was said, but for what the model is told before it."""
        self.messages = [m for m in self.messages if m["role"] == "system"]


__all__ = ["Conversation", "Generation", "LLM", "TextStream"]
