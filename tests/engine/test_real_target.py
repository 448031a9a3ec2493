"""The real target: our way of reading its GGUF file gives what transformers' own way gives."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine import catalog
from engine.models import source

pytestmark = pytest.mark.trio

TEXTS = (
    "The quick brown fox; it's 12,345.67 metres away!\n\n\tdef f(x):\n        return x**2  # ok",
    "déjà vu, naïve café, 東京へ行きます。我们今天去图书馆 😀🏳️‍🌈 ½",
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "   leading, trailing   ",
    "x=1;y=22;z=333 4444 0x1F",
)


@pytest.fixture(scope="module")
def gguf(pair):
    """The GGUF file: of the installed package, or downloaded for this test."""
    with source._gguf_file(catalog.load().models["smollm2-135m"], source.silent) as path:
        yield path


def test_weights_are_bit_identical_to_transformers_own_gguf_path(gguf):
    folder = source.checkpoint_folder(catalog.load().models["smollm2-135m"])
    ours = {}
    for shard in folder.glob("*.safetensors"):
        ours.update(load_file(shard))
    theirs = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).state_dict()
    assert set(theirs) - set(ours) == {"lm_head.weight"}  # tied
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name


def test_token_ids_are_those_of_transformers_own_gguf_tokenizer(gguf):
    folder = source.checkpoint_folder(catalog.load().models["smollm2-135m"])
    ours = AutoTokenizer.from_pretrained(folder)
    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    assert ours.get_vocab() == theirs.get_vocab()
    for text in TEXTS:
        ids = ours(text)["input_ids"]
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == text
    message = [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(message, tokenize=False) == theirs.apply_chat_template(
        message, tokenize=False
    )
