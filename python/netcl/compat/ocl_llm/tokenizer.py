"""A tokenizer with one id per character."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence

PAD, UNK = "<pad>", "<unk>"
DEFAULT_CHARACTERS = "\n\t" + "".join(map(chr, range(32, 127))) + "äöüÄÖÜß"
"""Characters of a tokenizer without a given vocabulary: printable ASCII and the German letters."""


class TinyTokenizer:
    """A tokenizer with one id per character. ``vocab`` maps characters to ids [default: ``<pad>`` 0, ``<unk>`` 1, then ``DEFAULT_CHARACTERS``],
    ``inv_vocab`` ids to characters. If ``<pad>`` or ``<unk>`` is missing, it is added with the next free id.
    """

    def __init__(self, vocab: Optional[Mapping[str, int]] = None, inv_vocab: Optional[Mapping[int, str]] = None) -> None:
        if vocab is None and inv_vocab is not None:
            vocab = {c: int(i) for i, c in inv_vocab.items()}
        if vocab is None:
            vocab = {c: i for i, c in enumerate((PAD, UNK, *DEFAULT_CHARACTERS))}
        self._vocab = {str(c): int(i) for c, i in vocab.items()}
        self._inverse = {i: c for c, i in self._vocab.items()} if inv_vocab is None else {int(i): str(c) for i, c in inv_vocab.items()}
        for token in (PAD, UNK):
            if token not in self._vocab:
                self._vocab[token] = max((*self._vocab.values(), *self._inverse, -1)) + 1
            self._inverse.setdefault(self._vocab[token], token)

    @classmethod
    def of_text(cls, text: str) -> "TinyTokenizer":
        """Creates a tokenizer for the characters of a text."""
        return cls({PAD: 0, UNK: 1, **{c: i + 2 for i, c in enumerate(sorted(set(text)))}})

    @property
    def vocab_size(self) -> int:
        """Number of ids, as a model needs it: the largest id plus 1."""
        return max(self._inverse) + 1

    @property
    def pad_id(self) -> int:
        """Id of ``<pad>``."""
        return self._vocab[PAD]

    def encode(self, text: str, max_len: Optional[int] = None) -> List[int]:
        """Converts text to ids, truncated or padded to ``max_len``."""
        ids = [self._vocab.get(c, self._vocab[UNK]) for c in text]
        return ids if max_len is None else ids[:max_len] + [self._vocab[PAD]] * (max_len - len(ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Converts ids to text without padding. An id outside of the vocabulary becomes ``?``."""
        return "".join(self._inverse.get(int(i), "?") for i in ids if int(i) != self._vocab[PAD])

    def get_vocab(self) -> Dict[str, int]:
        """Returns a copy of the map from characters to ids."""
        return dict(self._vocab)

    def get_inv_vocab(self) -> Dict[int, str]:
        """Returns a copy of the map from ids to characters."""
        return dict(self._inverse)


__all__ = ["PAD", "TinyTokenizer", "UNK"]
