"""Every message of the preflight is provoked by a tiny folder in a real layout."""

import json

import pytest

from engine import __main__ as cli
from engine.assess import assess
from engine.errors import PlaygroundError
from engine.inspecting import Facts, inspect
from engine.outlook import Machine, predicted

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 6,
    "dtype": "bfloat16", "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TOKENS = ["a", "b", "c", "d"]
ATTENTION = [f"self_attn.{n}_proj.weight" for n in "qkvo"] + ["mlp.up_proj.weight"]
TRUNK = [f"model.layers.{n}.{place}" for n in range(2) for place in ATTENTION]
QWEN = ["mtp.fc.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"]
QWEN += ["mtp.norm.weight", *(f"mtp.layers.0.{place}" for place in ATTENTION)]
DEEPSEEK = [f"model.layers.2.{n}.weight" for n in ("eh_proj", "enorm", "hnorm", "shared_head.norm")]
DEEPSEEK += [f"model.layers.2.{place}" for place in ATTENTION]
HYBRID = {"layer_types": ["linear_attention", "full_attention"], "model_type": "qwen3_5_text"}


def folder(path, *, keys=TRUNK, tokens=TOKENS, size=2000, template="", **config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**LLAMA, **config}))
    if keys:
        index = {
            "metadata": {"total_size": size},
            "weight_map": dict.fromkeys(keys, "m.safetensors"),
        }
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    if tokens:
        vocab = {text: number for number, text in enumerate(tokens)}
        (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    if template:
        (path / "chat_template.jinja").write_text(template)
    return path


@pytest.fixture
def told(tmp_path):
    """Assess folders made of these options; checks by code."""

    def tell(target=None, draft=None, mtp=None, machine=None):
        made = [
            options if options is None else inspect(folder(tmp_path / name, **options))
            for name, options in (("t", target or {}), ("d", draft), ("m", mtp))
        ]
        return {check.code: check for check in assess(*made, machine)}

    return tell


def states(checks):
    return {code: check.state for code, check in checks.items()}


def test_an_equal_pair_passes_every_check(told):
    found = told(draft={"size": 200})
    assert set(states(found).values()) == {"ok"}
    assert {"vocabulary_equal", "special_equal", "rollback_crop", "ratio", "mtp_none"} <= set(found)
    assert found["ratio"].facts["percent"] == pytest.approx(10)


def test_padding_is_no_difference(told):
    assert told({"vocab_size": 8}, {})["vocabulary_padded"].state == "ok"


def test_the_first_differing_id_is_named_with_both_strings(told):
    check = told({}, {"tokens": ["a", "b", "x", "y"]})["vocabulary_different"]
    assert check.state == "warn"
    assert check.facts == {"id": 2, "target": "c", "draft": "x"}


def test_what_only_one_side_names_is_never_drafted(told):
    check = told({}, {"tokens": TOKENS[:3]})["vocabulary_padded"]
    assert check.state == "ok"
    assert check.facts["masked"] > 0


def test_without_a_tokenizer_nothing_is_claimed(told):
    assert told({}, {"tokens": []})["vocabulary_unknown"].facts == {"model": "d"}


@pytest.mark.parametrize(
    ("target", "draft", "code"),
    [
        ({}, {"eos_token_id": 3}, "special_different"),
        ({"template": "x"}, {"template": "y"}, "template_different"),
        ({}, {"max_position_embeddings": 64}, "context_shorter"),
        ({}, {"dtype": "float16"}, "dtype_different"),
        ({}, {}, "ratio_large"),
        ({"quantization_config": {"quant_method": "awq"}}, None, "format_quantised"),
        ({"auto_map": {"AutoModel": "m.M"}}, None, "remote_code"),
        ({"keys": []}, None, "format_none"),
        ({"layer_types": ["novel"]}, None, "rollback_unknown"),
    ],
)
def test_a_difference_that_matters_is_said(told, target, draft, code):
    check = told(target, draft)[code]
    assert check.state == "fail" if code == "format_none" else check.text
    assert check.remedy or check.state == "ok"


def test_a_hybrid_with_its_module_is_complete_and_rolls_back_by_snapshots(told):
    found = told({**HYBRID, "keys": TRUNK + QWEN, "mtp_num_hidden_layers": 1})
    assert found["rollback_snapshot"].state == "warn"
    assert (found["mtp_here"].state, found["mtp_here"].facts["family"]) == ("ok", "qwen")


def test_the_deepseek_layout_is_found_behind_the_last_layer(told):
    assert told({"keys": TRUNK + DEEPSEEK})["mtp_here"].facts == {
        "family": "deepseek",
        "modules": 1,
    }


def test_a_module_may_be_stored_without_the_scales_of_a_quantised_trunk(told):
    scales = [f"{key}_scale_inv" for key in TRUNK]
    assert told({"keys": TRUNK + scales + QWEN})["mtp_here"].state == "ok"


@pytest.mark.parametrize("lost", [k for k in QWEN if "fc.bias" not in k])
def test_every_tensor_that_a_module_lacks_is_noticed(told, lost):
    if lost == "mtp.fc.weight":  # without it nothing tells the family
        found = told({"keys": TRUNK + QWEN[1:], "mtp_num_hidden_layers": 1})
        assert found["mtp_missing"].state == "fail"
        return
    found = told({"keys": TRUNK + [key for key in QWEN if key != lost]})
    assert found["mtp_incomplete"].state == "fail"
    assert found["mtp_incomplete"].facts["missing"] == 1


def experts_at(start, count=3):
    return [f"{start}mlp.experts.{n}.{part}_proj.weight" for n in range(count) for part in "ab"]


def test_an_expert_that_is_lost_is_named(told):
    keys = TRUNK + experts_at("model.layers.1.") + DEEPSEEK + experts_at("model.layers.2.")[:-1]
    found = told({"keys": keys})
    assert found["mtp_incomplete"].facts["place"] == "block.mlp.experts.2.b_proj.weight"


def test_experts_that_are_stored_in_another_way_are_not_missed(told):
    fused = ["model.layers.2.mlp.experts.gate_up_proj", "model.layers.2.mlp.experts.down_proj"]
    keys = TRUNK + experts_at("model.layers.1.") + DEEPSEEK + fused
    assert told({"keys": keys})["mtp_here"].state == "ok"


def test_a_claim_without_weights_fails_and_another_folder_mends_it(told, tmp_path):
    target = {"mtp_num_hidden_layers": 1}
    assert told(target)["mtp_missing"].state == "fail"
    lender = inspect(folder(tmp_path / "lender", keys=QWEN))
    checks = {c.code: c.state for c in assess(inspect(tmp_path / "t"), mtp=lender)}
    assert checks["mtp_here"] == "ok"
    assert "mtp_missing" not in checks


@pytest.mark.parametrize(
    ("file", "code", "state"),
    [("w.gguf", "format_gguf", "warn"), ("pytorch_model.bin", "format_pickle", "fail")],
)
def test_other_formats_have_messages_of_their_own(tmp_path, file, code, state):
    path = folder(tmp_path / "t", keys=[])
    (path / file).write_bytes(b"0" * 64)
    facts = inspect(path)
    assert facts.num_bytes == 64
    assert states({c.code: c for c in assess(facts)})[code] == state


def test_memory_is_weighed_by_the_devices_dtype(told, tmp_path):
    target = {"size": 2_000_000_000}  # a billion parameters in bf16
    told(target)
    facts = inspect(tmp_path / "t")
    for width, fits in ((4, "fits_not"), (2, "fits")):
        checks = {c.code: c for c in assess(facts, machine=Machine("here", 4_000_000_000, width))}
        assert fits in checks
    checks = {c.code for c in assess(facts, machine=Machine("cpu", None))}
    assert "fits_perhaps" in checks


@pytest.mark.parametrize(("dtype", "fits"), [("bfloat16", "fits"), ("float16", "fits_not")])
def test_a_processor_with_bf16_uses_it_where_fp32_has_no_room(told, dtype, fits):
    machine = Machine("cpu", 4_000_000_000, has_bf16=True)
    assert fits in told({"size": 2_000_000_000, "dtype": dtype}, machine=machine)


def test_a_prediction_is_labelled_dated_and_follows_the_formula(told):
    machine = Machine("cpu", None, passes=(2.0, 2.4), date="2026-12-01", provenance="here")
    check = told({}, {"size": 200}, machine=machine)["predicted_draft"]
    assert check.text.startswith("predicted for draft, not measured")
    assert check.facts["low"] == f"{(1 + 0.48) / (0.1 + 1.2):.2f}"
    assert check.facts["high"] == f"{(1 + 0.92) / (0.1 + 1.2):.2f}"
    assert (check.facts["date"], check.facts["provenance"]) == ("2026-12-01", "here")


@pytest.mark.parametrize("draft_rows", [None, 2])
def test_a_module_costs_its_own_weights_and_the_rows_of_the_head_it_scores(tmp_path, draft_rows):
    target = inspect(folder(tmp_path / "t", size=2000))  # 1000 weights, hidden size 8, 6 rows
    found = inspect(folder(tmp_path / "m", keys=QWEN)).found
    module = Facts("m", found=found, mtp_parameters=100, draft_rows=draft_rows)
    machine = Machine("cpu", None, passes=(1.0, 1.5))
    (check,) = predicted(target, None, module, machine)
    cost = (100 + 8 * (draft_rows or 6)) / 1000
    assert check.code == "predicted_mtp"
    assert check.facts["low"] == f"{1.48 / (cost + 1.5):.2f}"
    assert check.state == "warn"  # slower at the least acceptance
    assert check.remedy


def test_headers_tell_parameters_and_the_bytes_of_the_module(tmp_path):
    path = folder(tmp_path / "t", keys=[])
    head = {
        key: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [12 * n, 12 * n + 12]}
        for n, key in enumerate([*TRUNK, *QWEN])
    }
    text = json.dumps(head).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    facts = inspect(path)
    assert facts.parameters == 6 * len(head)
    assert facts.mtp_bytes == 12 * len(QWEN)


def test_what_cannot_be_read_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(PlaygroundError) as caught:
        inspect(tmp_path / "nowhere")
    assert caught.value.code == "no_checkpoint"
    path = folder(tmp_path / "t")
    (path / "config.json").write_text("{")
    with pytest.raises(PlaygroundError) as caught:
        inspect(path)
    assert caught.value.code == "bad_json"


def test_the_command_line_ends_with_1_when_a_check_fails(tmp_path, capsys):
    good = str(folder(tmp_path / "good"))
    bad = str(folder(tmp_path / "bad", keys=[]))
    assert cli.main(["check", "--target", good, "--draft", good]) == 0
    assert "ok   vocabulary_equal" in capsys.readouterr().out
    assert cli.main(["check", "--target", bad]) == 1
    assert "fail format_none" in capsys.readouterr().out
