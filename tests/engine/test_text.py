from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from engine.errors import PlaygroundError
from engine.models.toy import ToyCodec
from engine.text import HFCodec, Transcript

MERGED, EOS, OTHER = 256, 257, 258  # "th" and two special tokens


@cache
def tokenizer():
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    backend = Tokenizer(BPE(vocab={**vocab, "th": MERGED}, merges=[("t", "h")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def codec(eos=(EOS,)):
    return HFCodec(tokenizer(), frozenset(eos))


def ids_of(text):
    return tokenizer()(text)["input_ids"]


def test_the_special_tokens_of_this_file_are_where_it_says():
    assert tokenizer().convert_tokens_to_ids(["th", "<end>", "<s>"]) == [MERGED, EOS, OTHER]


@pytest.mark.parametrize("text", ["the é", "漢字", "a👩‍🚀b", "ẞ\n\t "])
def test_characters_wait_for_their_last_byte(text):
    pieces = codec().pieces()
    shown = [pieces.add(token) for token in ids_of(text)]
    assert "".join(shown) == text
    assert all("\ufffd" not in piece for piece in shown)
    assert len([piece for piece in shown if piece]) <= len(text)


def test_half_a_character_at_the_end_is_flushed_as_a_replacement_character():
    pieces = codec().pieces()
    assert [pieces.add(token) for token in ids_of("a漢")[:-1]] == ["a", "", ""]
    assert pieces.flush() == "\ufffd"


def test_special_tokens_show_no_text():
    pieces = codec().pieces()
    assert [pieces.add(token) for token in [*ids_of("a"), OTHER, *ids_of("b")]] == ["a", "", "b"]


def test_labels_show_whole_tokens_as_text_and_partial_ones_as_bytes():
    tokens = ids_of("é")
    assert [codec().label(token) for token in tokens] == ["⟨c3⟩", "⟨a9⟩"]
    assert codec().label(ids_of("th")[0]) == "th"
    assert codec().label(EOS) == "<end>"
    assert codec().label(99_999) == "⟨99999⟩"


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(PlaygroundError) as caught:
        HFCodec(object(), frozenset())
    assert caught.value.code == "slow_tokenizer"


def test_the_chat_template_is_used_unless_the_prompt_is_raw():
    templated = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend_tokenizer)
    templated.chat_template = "<s>{{ messages[0]['content'] }}:"
    ours = HFCodec(templated, frozenset())
    special = templated.convert_tokens_to_ids("<s>")
    assert ours.encode("hi") == [special, *ids_of("hi:")]
    assert ours.encode("hi", raw=True) == ids_of("hi")
    assert codec().encode("hi") == ids_of("hi")


# --- Transcript: letters are tokens, "a" is 0 ---


def letters(text):
    return [ord(char) - ord("a") for char in text]


def transcript(stop=(), cap=100, eos=()):
    toy = ToyCodec(26)
    toy.eos_ids = frozenset(eos)
    return Transcript(toy, cap, tuple(stop))


def test_text_that_may_begin_a_stop_string_is_held_back_and_then_released():
    text = transcript(["xyz"])
    assert text.take(letters("abxy"))[2] == "ab"
    assert text.take(letters("c"))[2] == "xyc"


def test_a_stop_string_across_tokens_ends_the_text_before_it():
    text = transcript(["xyz"])
    shown = text.take(letters("abxy"))[2]
    taken, pieces, more = text.take(letters("zcd"))
    assert (taken, pieces) == (letters("z"), ["z"])
    assert text.reason == "stop"
    assert shown + more + text.finish() == text.text == "ab"
    assert text.token_ids == letters("abxyz")
    assert text.num_hidden == 3


def test_a_stop_string_inside_a_token_hides_that_token():
    text = Transcript(codec(), 100, ("h",))
    shown = text.take(ids_of("a the"))[2]
    assert (shown, text.text, text.reason, text.num_hidden) == ("a t", "a t", "stop", 1)
    assert text.token_ids == ids_of("a th")


def test_a_stop_string_of_many_bytes_hides_all_its_tokens():
    text = Transcript(codec(), 100, ("漢",))
    text.take(ids_of("ab漢c"))
    assert (text.text, text.reason, text.num_hidden) == ("ab", "stop", 3)


def test_the_stop_string_that_begins_first_wins():
    text = Transcript(codec(), 100, ("h", "th"))
    text.take(ids_of("a the"))
    assert (text.text, text.num_hidden) == ("a ", 1)


def test_a_stop_beats_the_cap_at_the_same_token_and_an_earlier_cap_beats_a_later_stop():
    text = transcript(["c"], cap=3)
    text.take(letters("abc"))
    assert text.reason == "stop"
    text = transcript(["c"], cap=2)
    text.take(letters("abc"))
    assert (text.reason, text.token_ids) == ("length", letters("ab"))


def test_eos_beats_the_cap_at_the_same_token():
    text = transcript(eos=[2], cap=3)
    text.take(letters("abc"))
    assert (text.reason, text.num_hidden) == ("eos", 1)


def test_eos_inside_a_block_drops_what_follows():
    text = Transcript(codec(eos=[EOS, OTHER]), 100)
    assert text.take([*ids_of("ab"), OTHER, *ids_of("c"), EOS])[0] == [*ids_of("ab"), OTHER]
    assert (text.reason, text.text, text.num_hidden) == ("eos", "ab", 1)


def test_eos_releases_what_was_held_back():
    text = Transcript(codec(), 100, ("xyz",))
    shown = text.take([*ids_of("axy"), EOS])[2]
    assert shown + text.finish() == text.text == "axy"
    assert text.reason == "eos"


def test_without_eos_ids_nothing_but_the_cap_ends_the_text():
    text = Transcript(codec(eos=()), 4)
    text.take([EOS, *ids_of("abcdef")])
    assert (text.reason, len(text.token_ids), text.num_left) == ("length", 4, 0)


def test_held_back_text_appears_at_the_cap():
    text = transcript(["xyz"], cap=4)
    assert text.take(letters("abxy"))[2] == "abxy"
    assert text.finish() == ""


def test_a_cap_of_zero_takes_nothing_and_a_cap_of_one_takes_one():
    text = transcript(cap=0)
    assert (text.take(letters("ab")), text.reason) == (([], [], ""), "length")
    text = transcript(cap=1)
    assert (text.take(letters("ab"))[0], text.reason) == (letters("a"), "length")


def test_the_first_reason_stays():
    text = transcript()
    text.end("context")
    text.end("cancelled")
    assert text.reason == "context"


def test_a_run_that_is_cancelled_shows_what_it_held_back():
    text = transcript(["xyz"])
    shown = text.take(letters("axy"))[2]
    text.end("cancelled")
    assert shown + text.finish() == "axy"


@given(
    blocks=st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=10),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    cap=st.integers(0, 20),
)
@settings(deadline=None, max_examples=150)
def test_released_text_joins_to_the_final_text_and_never_holds_a_stop_string(blocks, stop, cap):
    text = transcript(stop, cap)
    shown = ""
    for block in blocks:
        shown += text.take(block)[2]
        assert not any(end in shown for end in stop)
    text.end("cancelled")
    shown += text.finish()
    assert shown == text.text
    assert len(text.token_ids) <= cap
    whole = "".join(chr(ord("a") + token) for block in blocks for token in block)[:cap]
    begins = [whole.find(end) for end in stop if end in whole]
    assert (text.reason == "stop") == bool(begins)
    if text.reason == "stop":
        visible = len(text.token_ids) - text.num_hidden
        assert text.text == whole[:visible]
        assert any(whole[: len(text.token_ids)].endswith(end) for end in stop)
    else:
        assert text.text == whole


@given(
    tokens=st.lists(st.integers(0, OTHER) | st.sampled_from(ids_of("abé漢")), max_size=25),
    stop=st.lists(st.sampled_from(["é", "a", "ab", "漢"]), max_size=2),
)
@settings(deadline=None, max_examples=150)
def test_random_bytes_join_to_what_the_tokenizer_decodes(tokens, stop):
    text = Transcript(codec(eos=()), 100, tuple(stop))
    shown = "".join(text.take([token])[2] for token in tokens)
    text.end("cancelled")
    shown += text.finish()
    assert shown == text.text
    whole = tokenizer().decode(tokens, skip_special_tokens=True)
    if text.reason == "stop":
        assert whole.startswith(shown)
        assert not any(end in shown for end in stop)
    else:
        assert shown == whole
