"""Tokens to text, one at a time, and stop strings.

Contract: `Codec` is the tokenizer as the engine needs it. `Pieces.add(id)` returns the text that
became complete with this token: characters that span tokens wait for their last byte, so nothing
half is ever shown. `Transcript` collects ids and text of a run, finds where it must end and holds
back text that may still turn into a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.errors import PlaygroundError
from engine.events import FinishReason


class Pieces(Protocol):
    """Incremental decoding of one sequence."""

    def add(self, token_id: int) -> str:
        """Return the text that this token completes."""
        ...

    def flush(self) -> str:
        """Return what the tokens so far leave incomplete, as replacement characters."""
        ...


class Codec(Protocol):
    """What the engine asks of a tokenizer."""

    eos_ids: frozenset[int]

    def encode(self, prompt: str, *, raw: bool = False) -> list[int]:
        """Return prompt ids, wrapped in the chat template unless `raw`."""
        ...

    def label(self, token_id: int) -> str:
        """Return a visible label of one token."""
        ...

    def pieces(self) -> Pieces:
        """Return a fresh incremental decoder."""
        ...


class HFCodec:
    """A fast transformers tokenizer as a `Codec`.

    Raises PlaygroundError("slow_tokenizer") when there is no `tokenizers` backend.
    """

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise PlaygroundError(
                "slow_tokenizer",
                "This model's tokenizer has no fast version.",
                "Add a tokenizer.json to its folder.",
            )
        self._tokenizer = tokenizer
        self._labels: dict[int, str] = {}
        self.eos_ids = eos_ids

    def encode(self, prompt: str, *, raw: bool = False) -> list[int]:
        """Return prompt ids; the chat template is used when there is one and `raw` is False."""
        text = prompt
        templated = bool(self._tokenizer.chat_template) and not raw
        if templated:
            text = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
        # A template writes every special token itself. Over-long prompts are for the caller to
        # refuse, in its own words, hence no warning from the library.
        encoded = self._tokenizer(text, add_special_tokens=not templated, verbose=False)
        return list(encoded["input_ids"])

    def spell(self, text: str) -> list[int]:
        """Return the ids of a text as it stands: nothing is put before or behind it."""
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones spelled out."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def is_special(self, token_id: int) -> bool:
        """Return whether a token stands for no text."""
        return token_id in self._tokenizer.all_special_ids

    def vocabulary(self) -> dict[str, int]:
        """Return the id of every token by its string."""
        words: dict[str, int] = self._tokenizer.get_vocab()
        return words

    def label(self, token_id: int) -> str:
        """Return the token's own text; bytes of a partial character as `⟨e4bd⟩`."""
        known = self._labels.get(token_id)
        if known is None:
            known = self._tokenizer.decode([token_id], skip_special_tokens=False)
            if "\ufffd" in known or not known:
                known = self._bytes_label(token_id)
            self._labels[token_id] = known
        return known

    def _bytes_label(self, token_id: int) -> str:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        spelled = self._tokenizer.convert_ids_to_tokens(token_id)
        if spelled is None:  # padding rows of an embedding have no token
            return f"⟨{token_id}⟩"
        byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
        if all(char in byte_of for char in spelled):
            return "⟨" + bytes(byte_of[char] for char in spelled).hex() + "⟩"
        return str(spelled)

    def pieces(self) -> Pieces:
        """Return a fresh incremental decoder."""
        return _StreamedPieces(self._tokenizer.backend_tokenizer)


class _StreamedPieces:
    """Incremental decoding by `tokenizers`' own DecodeStream."""

    def __init__(self, backend: Any) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._num_chars = 0

    def add(self, token_id: int) -> str:
        self._ids.append(token_id)
        piece: str = self._stream.step(self._backend, token_id) or ""
        self._num_chars += len(piece)
        return piece

    def flush(self) -> str:
        whole: str = self._backend.decode(self._ids, skip_special_tokens=True)
        return whole[self._num_chars :]


@dataclass(slots=True)
class Transcript:
    """The growing output of one run.

    `take` offers the tokens of a round and returns how many were taken; after that `reason` tells
    whether the run is over. An earlier stop beats a later one: the first token in order that ends
    the run decides, and EOS or a completed stop string beats the length cap at the same token.
    """

    codec: Codec
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    text: str = ""  # everything decoded so far, stop string included
    num_hidden: int = 0
    _ends: list[int] = field(default_factory=list)  # where each token's text ends in `text`
    _num_waiting: int = 0  # tokens at the end whose character is not complete yet
    _num_released: int = 0
    _pieces: Pieces = field(init=False)

    def __post_init__(self) -> None:
        self._pieces = self.codec.pieces()
        if self.max_new_tokens <= 0:
            self.reason = "length"

    def take(self, token_ids: list[int]) -> tuple[list[int], list[str], str]:
        """Take tokens up to the end of the run.

        Return the tokens taken, the text each completed, and the text that may be shown now.
        """
        taken: list[int] = []
        pieces: list[str] = []
        for token_id in token_ids:
            if self.reason:
                break
            taken.append(token_id)
            pieces.append(self._add(token_id))
        return taken, pieces, self._release()

    @property
    def num_left(self) -> int:
        """How many tokens may still be taken."""
        return self.max_new_tokens - len(self.token_ids)

    def end(self, reason: FinishReason) -> None:
        """End the run from outside."""
        self.reason = self.reason or reason

    def finish(self) -> str:
        """Complete the text of a run that has ended; return what was held back."""
        if self.reason != "stop":
            self.text += self._pieces.flush()
        return self._release()

    def _add(self, token_id: int) -> str:
        piece = self._pieces.add(token_id)
        before = len(self.text)
        self.text += piece
        self.token_ids.append(token_id)
        if piece and self._num_waiting:  # what waited is part of this piece's first character
            self._ends[-self._num_waiting :] = [before + 1] * self._num_waiting
        self._num_waiting = 0 if piece else self._num_waiting + 1
        self._ends.append(len(self.text))
        if token_id in self.codec.eos_ids:
            self.reason, self.num_hidden = "eos", 1
        elif (end := self._stop_at(before)) is not None:
            self.reason = "stop"
            self.num_hidden = sum(mark > end for mark in self._ends)
            self.text = self.text[:end]
        elif len(self.token_ids) >= self.max_new_tokens:
            self.reason = "length"
        return piece

    def _stop_at(self, before: int) -> int | None:
        """Return where the earliest stop string begins that the newest text completed."""
        longest = max(map(len, self.stop), default=0)
        window = max(0, before - longest + 1)
        found = [at for stop in self.stop if (at := self.text.find(stop, window)) >= 0]
        return min(found, default=None)

    def _release(self) -> str:
        """Return the text that may be shown now and was not yet."""
        safe = len(self.text)
        if not self.reason:
            safe -= self._num_undecided()
        ready = self.text[self._num_released : safe]
        self._num_released = max(self._num_released, safe)
        return ready

    def _num_undecided(self) -> int:
        """Return the length of the longest tail that is the beginning of a stop string."""
        longest = max(map(len, self.stop), default=0)
        for size in range(min(longest - 1, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-size:]) for stop in self.stop):
                return size
        return 0
