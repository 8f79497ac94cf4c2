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
    """A generated text. ``str()`` returns the text."""

    text: str
    """The new text."""
    tokens: List[int]
    """Its tokens, without the token that ended it."""
    finish: str
    """Reason for the end: ``end`` (an end-of-text token), ``stop`` (a stop string), ``length``, ``context`` (the context is full) or ``stopped``."""
    prompt_tokens: int
    """Number of tokens in the prompt."""
    reused_tokens: int
    """Prompt tokens that were already in the cache."""
    prompt_seconds: float
    """Time for the prompt in seconds."""
    seconds: float
    """Time for the new tokens in seconds."""

    def __str__(self) -> str:
        return self.text

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second. The first token is not counted, because it comes with the prompt."""
        return max(len(self.tokens) - 1, 0) / max(self.seconds, 1e-9)


class TextStream:
    """Streams text as it is generated, in whole characters. ``stop()`` ends it after the current token. ``result`` is available at the end."""

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
        """Ends the generation after the current token."""
        self._stream.stop()

    @property
    def result(self) -> Optional[Generation]:
        """The generated text, or ``None`` until it is complete."""
        return _results(self._stream)[0]


def _results(stream: Stream) -> List[Optional[Generation]]:
    return [None if made is None else Generation(**made) for made in stream.results()]


def _finished(stream: Stream) -> List[Generation]:
    for _ in stream:
        pass
    return [made for made in _results(stream) if made is not None]


class LLM:
    """A language model from a GGUF file, a folder in the Hugging Face layout, or the folder of a ``netcl.Trainer`` run.

    Quantized matrices stay quantized as in the file. ``device`` is one device or several, which share the layers; ``layers`` is the number of
    layers for each. ``dtype`` is the storage type of weights that are not quantized, and ``context`` the context length in tokens. ``adapters``
    are LoRA adapters: paths, or pairs of path and factor. ``progress(name, device, done, total)`` is called for each loaded parameter.

    Sampling settings are keyword arguments of each call, with llama.cpp's names: ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``typical_p``,
    ``top_n_sigma``, ``repeat_penalty``, ``repeat_last_n``, ``presence_penalty``, ``frequency_penalty``, ``dry_…``, ``xtc_…``, ``dynatemp_…``,
    ``mirostat…``, ``logit_bias``, ``samplers``, ``seed``, or ``greedy=True``. Defaults come from the model's files; the default seed is 0.
    ``grammar``, ``regex`` or ``json_schema`` constrain the text.

    The model runs in its own thread, which processes the calls of all threads in sequence. Ctrl-C ends a call at once; the model stops after the
    current token.
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
        """Continues a prompt, or several prompts at the same time, at most ``parallel``. A prompt is a text or a list of token ids.

        ``n_predict`` is the maximum number of new tokens; ``None`` means as many as the context allows. ``stop`` ends the text before a stop
        string. ``ignore_eos`` continues after end-of-text tokens. ``special`` parses names of control tokens in prompts as these tokens.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not prompts:
            return []
        made = _finished(self._model.generate(prompts, n_predict, stop, ignore_eos, special, parallel, sampling))
        return made[0] if isinstance(prompt, str) else made

    def stream(
        self, prompt: Prompt = "", n_predict: Optional[int] = 256, *, stop: Stops = None, ignore_eos: bool = False, special: bool = False, **sampling: Any
    ) -> TextStream:
        """Like ``generate`` for one prompt, as an iterator of text."""
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
        """Answers a user's message, or the last of several messages. Each message is a dictionary with ``role`` (system, user, assistant) and
        ``content``.

        Messages that the model has already processed in an earlier call are reused from the cache. ``conversation`` keeps the messages.
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
        """Like ``chat``, as an iterator of text."""
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
        """Starts a conversation that keeps its messages."""
        return Conversation(self, system)

    def embed(self, text: Union[Prompt, Sequence[str]], pooling: str = "mean", normalise: bool = True, special: bool = False) -> Any:
        """Computes vectors of texts from the hidden states after the last norm: a NumPy array of float32, (C,), or (n, C) for a list of n texts.

        ``pooling`` is ``mean`` over the tokens, ``last`` for the last token, or ``none`` for all tokens (T, C) of one text. Vectors are normalized
        to length 1 unless ``normalise`` is false.
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
            raise ValueError("embed: pooling none needs a single text, not a list")
        return np.stack([one(t) for t in text]) if len(text) else np.zeros((0, self.width), dtype=np.float32)  # type: ignore[arg-type]

    def tokenize(self, text: str, special: bool = False, prompt: bool = False) -> List[int]:
        """Converts a text to token ids. With ``prompt``, they follow the tokens that the tokenizer puts before every text."""
        return self._model.tokenize(text, special, prompt)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Converts token ids to text."""
        return self._model.detokenize(list(ids))

    @property
    def path(self) -> str:
        """The file, or the folder that contains ``config.json``."""
        return os.fspath(self._model.path)

    @property
    def family(self) -> str:
        """The model's family, a ``model_type``."""
        return self._model.family

    @property
    def context(self) -> int:
        """Context length in tokens."""
        return self._model.context

    @property
    def trained_context(self) -> int:
        """Context length in tokens, according to the model's files."""
        return self._model.trained_context

    @property
    def vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._model.vocab

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self._model.width

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self._model.parameters

    @property
    def dtype(self) -> DType:
        """Storage type of weights that are not quantized."""
        return DTYPES[self._model._dtype]

    @property
    def device(self) -> str:
        """Its device, or several devices separated by commas."""
        return self._model.device

    @property
    def has_chat_template(self) -> bool:
        """Whether the model's files have a chat template, which ``chat`` needs."""
        return self._model.has_chat_template

    def close(self) -> None:
        """Frees the model after its current work. This also happens when nothing refers to it anymore."""
        self._model.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.path!r}, family={self.family!r}, parameters={self.parameters}, context={self.context}, dtype={self.dtype}, device={self.device!r})"


class Conversation:
    """A conversation and its messages. ``messages`` may be changed between calls."""

    def __init__(self, llm: LLM, system: Optional[str] = None) -> None:
        self.llm = llm
        self.messages: List[Dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]

    def say(self, text: str, n_predict: Optional[int] = None, **settings: Any) -> Generation:
        """Sends a message and returns the answer. If this fails, the messages stay unchanged."""
        asked = [*self.messages, {"role": "user", "content": text}]
        answer = self.llm.chat(asked, n_predict, **settings)
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        return answer

    def stream(self, text: str, n_predict: Optional[int] = None, **settings: Any) -> Iterator[str]:
        """Like ``say``, as an iterator of text. Message and answer are kept when the iterator reaches its end."""
        asked = [*self.messages, {"role": "user", "content": text}]
        stream = self.llm.chat_stream(asked, n_predict, **settings)
        yield from stream
        made = stream.result
        self.messages = [*asked, {"role": "assistant", "content": "" if made is None else made.text}]

    def clear(self) -> None:
        """Removes all messages except the system message."""
        self.messages = [m for m in self.messages if m["role"] == "system"]


__all__ = ["Conversation", "Generation", "LLM", "TextStream"]
