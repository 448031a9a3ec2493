"""Preflight looks and never loads; what it cannot see it does not claim."""

import json
import os
from dataclasses import replace

import pytest

from engine import catalog, device, preflight, profile
from engine.catalog import pair_of
from engine.models import hub, source
from tests.engine.test_assess import DEEPSEEK, QWEN, TRUNK, folder

KNOWN = catalog.load()


def look(pair=None, known=KNOWN, **options):
    return preflight.preflight(known, pair or known.pair("smollm2"), **options)


def codes(found):
    return {check.code: check for check in found.checks}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep what is written out of the user's own cache; nothing is there yet."""
    monkeypatch.setenv("DRAFTLIGHT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def own(tmp_path):
    """A pair of two tiny folders."""

    def make(target=None, draft=None, **parts):
        folder(tmp_path / "t", **(target or {}))
        if draft is not None:
            parts["draft"] = str(folder(tmp_path / "d", **draft))
        return pair_of(str(tmp_path / "t"), **parts)

    return make


def test_bundled_weights_are_found():
    assert codes(look())["weights_bundled"].passed


def test_missing_bundled_weights_are_named():
    lost = replace(KNOWN.models["draftlight-mtp-135m"], folder="models/nowhere")
    broken = replace(KNOWN, models={**KNOWN.models, lost.id: lost})
    found = look(known=broken)
    assert not found.passed
    assert codes(found)["weights_lost"].text == "models/nowhere is missing"


def test_a_target_that_is_not_here_yet_is_no_failure(monkeypatch):
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    found = look()
    assert found.passed
    assert "93 MB" in codes(found)["weights_to_fetch"].text
    assert found.unread == ("SmolLM2-135M-Instruct",)


@pytest.mark.parametrize(("free", "code"), [(2e8, "fits_not"), (None, "fits_perhaps")])
def test_memory_is_weighed_by_the_catalogue_where_no_file_was_seen(monkeypatch, free, code):
    monkeypatch.setattr(device, "free_bytes", lambda at: free and int(free))
    assert code in codes(look())


def test_what_is_let_go_first_counts_as_free(monkeypatch):
    monkeypatch.setattr(device, "free_bytes", lambda at: 200_000_000)
    assert codes(look(freed=3_000_000_000))["fits"].facts["free"] == "3.2"


def test_a_size_that_nobody_knows_is_said_to_be_unknown():
    found = look(pair_of("owner/model"))
    assert codes(found)["fits_unknown"].remedy
    assert (found.unread, found.on_hub) == (("model",), True)


def test_two_folders_are_compared_and_every_way_is_weighed(own):
    found = look(own({"keys": TRUNK + QWEN}, {"size": 200}, mtp="native"))
    assert {"vocabulary_equal", "ratio", "mtp_here", "fits"} <= codes(found).keys()
    assert [way.way for way in found.ways] == ["mtp", "draft"]
    assert found.passed
    assert not found.unread
    families = {row.method: row.family for row in found.support}
    assert families == {"mtp": "qwen", "draft": "attention", "lookup": "attention"}


def test_a_recurrent_target_has_its_own_rows_of_support(own):
    rows = look(own({"layer_types": ["linear_attention", "full_attention"]})).support
    assert {(row.method, row.family) for row in rows} == {("lookup", "recurrent")}


def test_the_bundled_draft_takes_its_vocabulary_from_its_target(tmp_path, monkeypatch):
    here = folder(tmp_path / "target")
    monkeypatch.setattr(source, "cached_checkpoint", lambda model: here)
    found = look()
    assert "vocabulary_equal" in codes(found)
    assert all("download" not in way.decisions for way in found.ways)
    assert {row.family for row in found.support if row.method == "mtp"} == {"bundled"}


def test_a_file_that_cannot_be_read_is_a_check_that_failed(own, tmp_path):
    pair = own({}, {})
    (tmp_path / "d" / "config.json").write_text("{")
    found = look(pair)
    assert not found.passed
    assert codes(found)["error.bad_json"].facts["folder"] == "d"


@pytest.mark.parametrize(
    ("model_type", "code"), [("novel", "type_unknown"), ("mimo", "type_known")]
)
def test_a_type_of_code_that_is_never_run_is_known_before_loading(own, model_type, code):
    assert code in codes(look(own({"model_type": model_type})))


def test_what_is_loaded_is_counted_and_not_foretold(own):
    found = look(own()).loaded(1_500_000_000)
    assert [c.code for c in found.checks if c.code.startswith("fits")] == ["fits_loaded"]
    assert codes(found)["fits_loaded"].facts == {"gb": "1.5"}


# --- the hub ---


class Hub:
    """A hub that holds one repository, a folder of its small files."""

    def __init__(self, monkeypatch, there, sizes, headers=None):
        self.asked = []
        self.there = there

        class Tensor:
            def __init__(self, shape, dtype, data_offsets):
                self.shape, self.dtype, self.data_offsets = shape, dtype, data_offsets

        class Answer:
            siblings = [  # noqa: RUF012
                type("File", (), {"rfilename": name, "size": size}) for name, size in sizes.items()
            ]
            files_metadata = {  # noqa: RUF012
                "model.safetensors": type(
                    "Head", (), {"tensors": {k: Tensor(**v) for k, v in (headers or {}).items()}}
                )
            }

        def snapshot(name, *, local_dir, allow_patterns, **_):
            self.asked.append((name, tuple(allow_patterns)))
            local_dir.mkdir(parents=True)
            for path in there.iterdir():
                (local_dir / path.name).write_bytes(path.read_bytes())
            return str(local_dir)

        monkeypatch.setattr(hub.huggingface_hub, "model_info", lambda name, **_: Answer)
        monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", snapshot)
        monkeypatch.setattr(hub.huggingface_hub, "get_safetensors_metadata", lambda name: Answer)


def test_the_hub_is_asked_only_on_demand_and_never_for_weights(tmp_path, monkeypatch):
    there = folder(tmp_path / "there", keys=TRUNK + DEEPSEEK, size=4000)
    asked = Hub(monkeypatch, there, {"m.safetensors": 4000, "original/m.pth": 9000})
    pair = pair_of("owner/model", mtp="native")
    assert look(pair).on_hub
    assert asked.asked == []
    found = look(pair, ask_hub=True)
    assert (found.unread, found.on_hub) == ((), False)
    assert {"weights_of_hub", "format_safetensors", "mtp_here", "fits"} <= codes(found).keys()
    ((name, patterns),) = asked.asked
    assert name == "owner/model"
    assert not [p for p in patterns if "safetensors" in p or "bin" in p]


def test_the_heads_of_a_single_file_are_asked_for(tmp_path, monkeypatch):
    there = folder(tmp_path / "there", keys=[])
    heads = {
        key: {"shape": [2, 3], "dtype": "BF16", "data_offsets": (12 * n, 12 * n + 12)}
        for n, key in enumerate([*TRUNK, *QWEN])
    }
    Hub(monkeypatch, there, {"model.safetensors": 12 * len(heads)}, heads)
    found = look(pair_of("owner/model", mtp="native"), ask_hub=True)
    assert "mtp_here" in codes(found)
    assert found.ways[0].num_bytes == 12 * len(QWEN)


def test_a_hub_that_cannot_be_reached_is_a_check_with_its_remedy(monkeypatch):
    def lost(name, **_):
        raise hub.errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr(hub.huggingface_hub, "model_info", lost)
    found = look(pair_of("owner/model"), ask_hub=True)
    assert codes(found)["error.hub_offline"].remedy
    assert found.unread == ("model",)


# --- the profile of the machine ---

SHAPE = {"intermediate_size": 16}


def test_a_profile_is_measured_once_and_predicts(own, monkeypatch):
    pair = own(SHAPE, {**SHAPE, "size": 200})
    monkeypatch.setattr(profile, "_WEIGHT_BYTES", 20_000)
    before = look(pair)
    assert before.unmeasured
    assert "predicted_draft" not in codes(before)
    found = look(pair, measure=True)
    check = codes(found)["predicted_draft"]
    assert check.text.startswith("predicted for draft, not measured")
    assert check.facts["date"]
    assert check.facts["provenance"]
    assert not found.unmeasured
    monkeypatch.setattr(profile, "measured", None)  # would fail
    assert codes(look(pair, measure=True))["predicted_draft"] == check


def test_a_profile_has_a_pass_of_every_length_in_passes_of_one(own, monkeypatch):
    monkeypatch.setattr(profile, "_WEIGHT_BYTES", 20_000)
    look(own(SHAPE), measure=True)
    ((key, kept),) = json.loads((source.cache_folder() / "machine.json").read_text()).items()
    assert "threads" in key
    assert len(kept["passes"]) == profile.LONGEST
    assert kept["passes"][0] == 1
    assert min(kept["passes"]) > 0
    assert kept["bytes_per_second"] > 0


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_a_broken_profile_is_measured_again(own, monkeypatch, text):
    monkeypatch.setattr(profile, "_WEIGHT_BYTES", 20_000)
    path = source.cache_folder() / "machine.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    pair = own(SHAPE)
    assert look(pair).unmeasured
    assert not look(pair, measure=True).unmeasured
    assert len(json.loads(path.read_text())) == 1


@pytest.mark.parametrize("config", [{}, {**SHAPE, "num_experts": 4}])
def test_without_a_known_shape_and_for_experts_nothing_is_predicted(own, config):
    found = look(own(config, {"size": 200}), measure=True)
    assert not found.unmeasured
    assert not [code for code in codes(found) if code.startswith("predicted")]


def test_a_shape_beyond_reason_is_not_measured(own):
    huge = {"hidden_size": 65536, "intermediate_size": 262144}
    assert not look(own(huge), measure=True).unmeasured


def test_a_folder_that_begins_with_a_tilde_is_found(own, tmp_path, monkeypatch):
    own()
    monkeypatch.setitem(os.environ, "HOME", str(tmp_path))
    assert not look(pair_of("~/t")).unread
