"""Any pair from folders, end to end; and every way in which that can go wrong."""

import gc
import socket
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import loading
from engine.catalog import load, pair_of
from engine.errors import PlaygroundError
from engine.events import Settings
from engine.models import checkpoint
from engine.models.checkpoint import Plan, Stored, plan_for
from engine.models.hf import HFModel
from engine.models.lean import LeanLlama
from engine.models.mtp_families import QWEN
from engine.runtime import load_pair
from tests.engine.folders import (
    add_module,
    edit,
    llama_folder,
    mimo_folder,
    qwen35_folder,
    save,
)
from tests.engine.test_gguf_checkpoint import original, write_gguf
from tests.engine.tiny import CPU, finished, llama, rounds

PROMPT = "one two one two"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path):
    def refuse(*_):
        pytest.fail("asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("DRAFTLIGHT_CACHE", str(tmp_path / "cache"))


def loaded(target, draft="", mtp="", **options):
    pair = pair_of(str(target), str(draft), str(mtp))
    return load_pair(pair.id, device="cpu", int8=False, **options)


def ids_of(pair, method, gamma=3, raw=True):
    settings = Settings(gamma=gamma, max_new_tokens=24, raw=raw)
    return list(pair.run(method, PROMPT, settings))


def refusal(call, *args, **options):
    with pytest.raises(PlaygroundError) as caught:
        call(*args, **options)
    assert caught.value.remedy
    return caught.value


@pytest.fixture
def llamas(tmp_path):
    target = llama_folder(tmp_path / "target")
    return target, llama_folder(tmp_path / "draft", noise=0.03)


def test_a_target_and_a_draft_from_two_folders_give_the_text_of_plain_decoding(llamas):
    pair = loaded(*llamas)
    assert (pair.target_name, pair.draft_name) == ("target", "draft")
    assert isinstance(pair.target, LeanLlama)
    assert pair.methods == ("plain", "draft", "lookup", "early_exit", "synthetic")
    expected = finished(ids_of(pair, "plain")).token_ids
    model = checkpoint.load_model(llamas[0], Plan(CPU, torch.float32))
    prompt = pair.codec.encode(PROMPT, raw=True)
    own = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)
    assert expected == tuple(own[0, len(prompt) :].tolist())
    for method in ("draft", "lookup"):
        events = ids_of(pair, method)
        assert finished(events).token_ids == expected
        assert any(done.verdict.num_accepted for done in rounds(events)) or method == "lookup"


@pytest.mark.parametrize("make", [mimo_folder, qwen35_folder])
@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_a_checkpoint_with_its_own_module_gives_the_text_of_plain_decoding(tmp_path, make, gamma):
    folder = make(tmp_path / "target")
    pair = loaded(folder, draft=folder, mtp="native")
    assert isinstance(pair.target, HFModel)
    assert pair.mtp_name == "target MTP"
    assert pair.methods == ("plain", "mtp", "draft", "lookup", "early_exit", "synthetic")
    assert 0 <= float(pair.where["mtp_agreement"]) <= 1
    assert pair.where["mtp_wiring"] in ("fine", "weak", "swapped", "norm")
    expected = finished(ids_of(pair, "plain")).token_ids
    for method in ("mtp", "draft", "lookup", "early_exit"):
        events = ids_of(pair, method, gamma)
        assert finished(events).token_ids == expected
        if method == "mtp":
            assert sum(len(done.proposal.tokens) for done in rounds(events)) > 0
        if method == "draft":  # the target drafts for itself
            assert all(
                done.verdict.num_accepted == len(done.proposal.tokens) for done in rounds(events)
            )


def test_a_type_in_disguise_is_loaded_without_its_code(tmp_path):
    folder = mimo_folder(tmp_path / "target")
    model = checkpoint.load_model(folder, Plan(CPU, torch.float32))
    assert type(model).__name__ == "Qwen2ForCausalLM"


def test_a_module_can_come_from_a_folder_of_its_own(tmp_path):
    whole = qwen35_folder(tmp_path / "whole")
    tensors = load_file(whole / "model.safetensors")
    module = {key: tensor for key, tensor in tensors.items() if key.startswith("mtp.")}
    assert len(module) == 15
    bare = qwen35_folder(tmp_path / "bare")
    rest = {key: tensor for key, tensor in tensors.items() if key not in module}
    save_file(rest, bare / "model.safetensors", metadata={"format": "pt"})
    head = qwen35_folder(tmp_path / "head")
    save_file(module, head / "model.safetensors", metadata={"format": "pt"})
    borrowed, own = loaded(bare, mtp=head), loaded(whole, mtp="native")
    assert borrowed.mtp_name == "head"
    events = [ids_of(pair, "mtp") for pair in (borrowed, own)]
    assert [done.proposal.tokens for done in rounds(events[0])] == [
        done.proposal.tokens for done in rounds(events[1])
    ]


def test_what_was_loaded_is_measured(llamas):
    where = loaded(*llamas).where
    assert where["dtype"] == where["drafters"] == "float32"
    assert float(where["memory_gb"]) >= 0
    big = llama(vocab=259, hidden_size=256, intermediate_size=4096)
    save(big, llamas[0])
    measured = float(loaded(llamas[0]).where["memory_gb"])
    stated = sum(weight.numel() for weight in big.parameters()) * 4 / 1e9
    assert measured == pytest.approx(stated, rel=0.25)


def test_a_draft_in_int8_drafts_and_changes_no_text(llamas):
    pair = pair_of(str(llamas[0]), str(llamas[1]))
    rounded = load_pair(pair.id, device="cpu", int8=True)
    assert rounded.where["drafters"] == "int8"
    expected = finished(ids_of(rounded, "plain")).token_ids
    assert finished(ids_of(rounded, "draft")).token_ids == expected


def test_a_catalogue_model_can_be_named_in_an_ad_hoc_pair():
    assert load().model("smollm2-135m").source == "wheel"
    assert load().model("Qwen/Qwen3-8B").id == "qwen3-8b"


def test_a_gguf_folder_is_loaded_through_the_library(tmp_path):
    folder = tmp_path / "gguf"
    folder.mkdir()
    write_gguf(folder / "tiny.gguf")
    count = sum(weight.numel() for weight in original(tied=True).parameters())
    assert checkpoint.stored_in(folder, "x") == Stored(count, "F32")
    pair = loaded(folder, draft=folder)
    prompt = pair.codec.encode("the cat", raw=True)
    with torch.no_grad():
        expected = original(tied=True)(torch.tensor([prompt])).logits[0, -1:]
    assert torch.allclose(pair.target.read(prompt).logits, expected, atol=1e-4)
    texts = [finished(ids_of(pair, method)).token_ids for method in ("plain", "draft")]
    assert texts[0] == texts[1]


def test_a_gguf_file_that_the_library_does_not_know_is_refused(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", arch="mystery")
    assert refusal(loaded, tmp_path).code == "cannot_load"


# --- numbers, places and memory ---


def test_the_size_of_a_checkpoint_is_read_from_the_heads_of_its_files(llamas, tmp_path):
    model = llama(vocab=259)
    count = sum(weight.numel() for weight in model.parameters())
    assert checkpoint.stored_in(llamas[0], "x") == Stored(count, "F32")
    folder = save(model.to(torch.bfloat16), tmp_path / "half", max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert checkpoint.stored_in(folder, "x") == Stored(count, "BF16")


def test_what_a_language_model_does_not_load_does_not_count(llamas):
    before = checkpoint.stored_in(llamas[0], "x")
    path = llamas[0] / "vision.safetensors"
    save_file({"model.visual.blocks.0.weight": torch.zeros(500, 500)}, path)
    assert checkpoint.stored_in(llamas[0], "x") == before


MILLION = 1_000_000
PLANS = [
    # stored as, free GB, native bf16, -> the type; None: refused
    ("BF16", 100.0, True, torch.float32),
    ("BF16", 5.0, True, torch.float32),
    ("BF16", 3.0, True, torch.bfloat16),
    ("BF16", 3.0, False, None),
    ("F16", 3.0, True, None),
    ("BF16", 2.0, True, None),
    ("BF16", None, True, torch.float32),
]


@pytest.mark.parametrize(("kind", "free", "native", "expected"), PLANS)
def test_a_cpu_computes_in_fp32_unless_only_bf16_fits(kind, free, native, expected, monkeypatch):
    monkeypatch.setattr(checkpoint, "free_memory_gb", lambda: free)
    monkeypatch.setattr(checkpoint, "bf16_is_native", lambda: native)
    stored = [Stored(900 * MILLION, kind), Stored(100 * MILLION, "F32")]
    if expected is None:
        error = refusal(plan_for, stored, CPU, "big")
        assert error.code == "out_of_memory"
        assert error.facts["needed"] in (4.4, 2.2)
        assert error.facts["free"] == free
    else:
        assert plan_for(stored, CPU, "big") == Plan(CPU, expected)


def test_a_pair_runs_in_bf16_where_fp32_does_not_fit(tmp_path, monkeypatch):
    folder = qwen35_folder(tmp_path / "target", torch.bfloat16)
    stored = checkpoint.stored_in(folder, "x")
    assert stored.dtype == "BF16"
    monkeypatch.setattr(checkpoint, "bf16_is_native", lambda: True)
    monkeypatch.setattr(checkpoint, "free_memory_gb", lambda: 2 * stored.num_weights * 2.5 / 1e9)
    pair = loaded(folder, draft=folder, mtp="native")
    assert pair.where["dtype"] == pair.where["drafters"] == "bfloat16"
    for method in ("plain", "mtp", "draft"):
        events = ids_of(pair, method)
        assert len(finished(events).token_ids) == 24
        assert method == "plain" or any(done.proposal.tokens for done in rounds(events))


@pytest.mark.parametrize(
    ("count", "accelerate", "expected"),
    [(1, True, "here"), (20, True, "spread"), (20, False, "needs_accelerate"),
     (90, True, "out_of_memory")],
)  # fmt: skip
def test_gpus_are_used_together_only_when_one_is_not_enough(
    count, accelerate, expected, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (24e9, 24e9))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(
        checkpoint.importlib.util, "find_spec", lambda name: object() if accelerate else None
    )
    device = torch.device("cuda:1")
    stored = [Stored(count * 1000 * MILLION, "BF16")]
    if expected in ("here", "spread"):
        plan = plan_for(stored, device, "big")
        assert plan == Plan(device, torch.bfloat16, spread=expected == "spread")
    else:
        assert refusal(plan_for, stored, device, "big").code == expected


@pytest.mark.parametrize("spread", [False, True])
def test_the_library_is_told_to_spread_and_never_to_run_code(llamas, monkeypatch, spread):
    pytest.importorskip("accelerate")
    real, told = checkpoint.AutoModelForCausalLM.from_pretrained, []

    def from_pretrained(*args, **options):
        told.append(options)
        return real(*args, **options)

    monkeypatch.setattr(checkpoint.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    checkpoint.load_model(llamas[0], Plan(CPU, torch.float32, spread=spread))
    assert [options.get("device_map") for options in told] == ["auto" if spread else None]
    assert told[0]["trust_remote_code"] is False
    assert told[0]["local_files_only"] is True


def test_nothing_is_loaded_when_it_cannot_fit(llamas, monkeypatch):
    monkeypatch.setattr(checkpoint, "free_memory_gb", lambda: 1e-5)
    monkeypatch.setattr(checkpoint, "load_model", lambda *_: pytest.fail("loaded"))
    error = refusal(loaded, *llamas)
    assert (error.code, error.facts["model"]) == ("out_of_memory", "target")


LACKS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
]


@pytest.mark.parametrize("lack", LACKS, ids=lambda lack: type(lack).__name__)
def test_a_lack_of_memory_halfway_is_told_and_leaves_nothing_loaded(llamas, monkeypatch, lack):
    real, models = checkpoint.load_model, []

    def load_model(folder, plan, name):
        if models:
            raise lack
        models.append(weakref.ref(model := real(folder, plan, name)))
        return model

    monkeypatch.setattr(checkpoint, "load_model", load_model)
    error = refusal(loaded, *llamas)
    lack.__traceback__ = None  # pytest's parameter lives on
    gc.collect()
    assert error.code == "out_of_memory"
    assert isinstance(error.facts["free"], float)
    assert [model() for model in models] == [None]


def test_after_any_refusal_nothing_stays_in_memory_while_the_error_lives(llamas, monkeypatch):
    (llamas[1] / "tokenizer.json").unlink()
    real, models = checkpoint.load_model, []

    def load_model(*args):
        model = real(*args)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(checkpoint, "load_model", load_model)
    error = refusal(loaded, *llamas)
    gc.collect()
    assert error.code == "no_tokenizer"
    assert len(models) == 2
    assert [model() for model in models] == [None, None]


def test_another_error_is_not_taken_for_a_lack_of_memory():
    def load():
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        loading.all_or_nothing(load, "x")


# --- checkpoints that cannot be loaded ---


def test_code_of_a_checkpoint_is_never_run(llamas):
    edit(llamas[0], model_type="mystery", auto_map={"AutoConfig": "code.Config"})
    (llamas[0] / "code.py").write_text("raise SystemExit('code was run')")
    error = refusal(loaded, llamas[0])
    assert (error.code, error.facts["type"]) == ("unknown_architecture", "mystery")


def test_a_missing_tensor_names_itself(llamas):
    path = llamas[0] / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    error = refusal(loaded, llamas[0])
    assert error.code == "incomplete_checkpoint"
    assert "model.layers.1.mlp.up_proj.weight" in error.message


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\x05\0\0\0\0\0\0\0{oops"])
def test_a_file_that_is_damaged_is_named(llamas, content):
    (llamas[0] / "model.safetensors").write_bytes(content)
    error = refusal(loaded, llamas[0])
    assert error.code == "incomplete_checkpoint"
    assert "model.safetensors" in error.message


def test_a_file_that_was_cut_short_is_told(llamas):
    path = llamas[0] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(loaded, llamas[0]).code == "incomplete_checkpoint"


def test_what_the_library_refuses_is_told_with_its_reason(llamas):
    edit(llamas[0], hidden_size=64)
    error = refusal(loaded, llamas[0])
    assert error.code == "cannot_load"
    assert error.facts["reason"]


def test_a_model_that_does_not_write_text_is_refused(llamas):
    edit(llamas[0], model_type="vit")
    assert refusal(loaded, llamas[0]).code == "cannot_load"


def test_a_checkpoint_without_a_module_says_so(llamas):
    assert refusal(loaded, llamas[0], mtp="native").code == "no_mtp"
    edit(llamas[0], num_nextn_predict_layers=1)
    assert refusal(loaded, llamas[0], mtp="native").code == "mtp_weights_missing"


def test_a_module_of_another_size_is_refused(llamas, tmp_path):
    other = llama(vocab=259, hidden_size=64)
    head = save(other, tmp_path / "head")
    add_module(head, other, QWEN)
    assert refusal(loaded, llamas[0], mtp=head).code == "bad_module"


def test_a_pair_without_a_target_is_refused():
    assert refusal(pair_of, "  ", "x").code == "no_target"
