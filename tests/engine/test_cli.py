import json
import sys

import pytest

from engine import __main__ as cli
from engine import runtime, trace
from engine.catalog import load
from engine.errors import PlaygroundError
from engine.events import Finished, Settings
from engine.metrics import fold
from tests.engine.tiny import finished, toy_pair


@pytest.fixture
def loaded(monkeypatch):
    """`load_pair` gives table models, and remembers what it was asked for."""
    asked = []

    def fake(pair_id, *, device=None, report):
        asked.append((pair_id, device))
        return toy_pair()

    monkeypatch.setattr(runtime, "load_pair", fake)
    return asked


def generate(*arguments):
    return cli.main(["generate", "--method", "draft", "--prompt", "abcab", *arguments])


def expected(**chosen):
    return list(toy_pair().run("draft", "abcab", Settings(max_new_tokens=12, **chosen)))


def test_generate_prints_the_text_and_nothing_else(loaded, capsys):
    assert generate("--max-new-tokens", "12") == 0
    out = capsys.readouterr().out
    assert out == finished(expected()).text + "\n"
    assert loaded == [("smollm2", None)]


def test_the_statistics_are_the_last_line_and_json(loaded, capsys):
    assert generate("--max-new-tokens", "12", "--stats") == 0
    *text, last = capsys.readouterr().out.splitlines()
    stats = json.loads(last)
    assert stats["token_ids"] == list(finished(expected()).token_ids)
    assert stats["num_new_tokens"] == 12
    assert "\n".join(text) == finished(expected()).text
    assert set(stats) == set(fold([]).stats())


def test_the_events_can_be_read_back(loaded, tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    assert generate("--max-new-tokens", "12", "--jsonl", str(path)) == 0
    events = list(trace.read(path))
    assert isinstance(events[-1], Finished)
    assert finished(events) == finished(expected())
    assert capsys.readouterr().out == finished(events).text + "\n"


def test_every_option_reaches_the_run(loaded, tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    options = ["--gamma", "2", "--adaptive", "--temperature", "0.7", "--top-k", "5"]
    options += ["--top-p", "0.9", "--min-p", "0.1", "--repetition-penalty", "1.2", "--seed", "3"]
    options += ["--alpha", "0.4", "--raw", "--stop", "x", "y z", "--device", "cpu"]
    assert generate("--max-new-tokens", "12", *options, "--jsonl", str(path)) == 0
    assert next(trace.read(path)).settings == Settings(
        gamma=2,
        adaptive=True,
        max_new_tokens=12,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.2,
        seed=3,
        alpha=0.4,
        raw=True,
        stop=("x", "y z"),
    )
    assert loaded == [("smollm2", "cpu")]
    assert capsys.readouterr().err == ""


def test_the_defaults_of_the_command_line_are_those_of_the_settings(loaded, tmp_path):
    path = tmp_path / "run.jsonl"
    generate("--jsonl", str(path))
    assert next(trace.read(path)).settings == Settings()


BAD_REQUESTS = {
    "empty prompt": ["--prompt", " "],
    "gamma": ["--gamma", "99"],
    "temperature": ["--temperature", "nan"],
    "top-p": ["--top-p", "0"],
    "stop": ["--stop", ""],
    "a method without weights": ["--method", "mtp"],
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_what_a_user_can_mend_is_one_line_and_code_2(loaded, capsys, name):
    assert generate(*BAD_REQUESTS[name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def test_an_unknown_pair_is_one_line_and_code_2(capsys):
    assert generate("--pair", "nonsense") == 2
    said = capsys.readouterr()
    assert "nonsense" in said.err
    assert "smollm2" in said.err
    assert said.err.count("\n") == 1


PARTS = {
    "target alone": (["--target", "a/b"], "target=a/b"),
    "a folder and a draft": (["--target", "/m/x", "--draft", "c/d"], "target=/m/x&draft=c/d"),
    "a head": (["--target", "a/b", "--mtp", "e/f"], "target=a/b&mtp=e/f"),
    "the head inside": (["--target", "a/b", "--mtp", "native"], "target=a/b&mtp=native"),
    "its own head is meant": (["--target", "a/b", "--method", "mtp"], "target=a/b&mtp=native"),
    "a pair": (["--pair", "qwen3-8b"], "qwen3-8b"),
}


@pytest.mark.parametrize("case", PARTS)
def test_a_pair_can_be_named_by_its_parts(loaded, case):
    arguments, pair_id = PARTS[case]
    generate("--max-new-tokens", "2", *arguments)
    assert loaded == [(pair_id, None)]
    assert load().pair(pair_id).id == pair_id


def test_a_draft_without_a_target_is_one_line_and_code_2(loaded, capsys):
    assert generate("--draft", "a/b") == 2
    assert "--target" not in (said := capsys.readouterr().err)
    assert "needs a target" in said


def test_a_pair_named_by_its_parts_can_be_checked(capsys):
    named = ["check", "--offline", "--target", "a/b", "--draft", "c/d", "--mtp", "native"]
    assert cli.main(named) == 0
    said = capsys.readouterr().out
    assert "b comes from the hub" in said
    assert "d comes from the hub" in said
    assert "not looked at: b, d" in said


def test_weights_that_are_missing_are_one_line_and_code_2(monkeypatch, capsys):
    def missing(*_, **__):
        raise PlaygroundError("target_missing", "It is not here.", "Connect once.")

    monkeypatch.setattr(runtime, "load_pair", missing)
    assert generate() == 2
    assert capsys.readouterr().err == "error: It is not here. Connect once.\n"


WRONG_ARGUMENTS = {
    "no command": [],
    "unknown command": ["dance"],
    "no prompt": ["generate"],
    "unknown method": ["generate", "--prompt", "a", "--method", "magic"],
    "not a number": ["generate", "--prompt", "a", "--gamma", "many"],
    "unknown option": ["generate", "--prompt", "a", "--magic"],
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_wrong_arguments_end_with_code_2_and_a_line_that_names_them(capsys, name):
    with pytest.raises(SystemExit) as caught:
        cli.main(WRONG_ARGUMENTS[name])
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def test_help_names_every_method(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["generate", "--help"])
    assert caught.value.code == 0
    help_text = capsys.readouterr().out
    assert all(method in help_text for method in load().methods)


def test_progress_goes_to_standard_error(capsys):
    from engine.models.source import Progress

    cli._report(Progress("download", 0.5, "x"))
    cli._report(Progress("load"))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "download 50% x\nload \n")
    assert "engine.models.source" in sys.modules
