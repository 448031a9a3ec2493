"""The README, the requirements and the folders say what is true."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from app.theme import LEGEND
from engine import catalog
from engine.bench import METHODS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows_under(heading: str) -> list[list[str]]:
    section = README.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def front_matter() -> dict[str, str]:
    block = README.split("---\n")[1]
    return {
        key: value.strip().strip('"')
        for key, value in (line.split(":", 1) for line in block.splitlines())
    }


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 200


def test_the_readme_has_the_two_commands_word_for_word() -> None:
    assert "\npip install -r requirements.txt && python app.py\n" in README
    assert "\npip install -r requirements-dev.txt && python -m pytest\n" in README
    assert "pip install -r requirements-dev.txt && python -m pytest" in (
        ROOT / ".ci" / "run"
    ).read_text(encoding="utf-8")


def test_the_methods_table_is_the_catalogue() -> None:
    listed = [row[0].strip("`") for row in rows_under("Methods")]
    assert listed == list(catalog.load().methods)


def test_the_legend_is_the_one_on_the_page() -> None:
    rows = rows_under("What the colours mean")
    assert [row[0] for row in rows] == [mark.fate for mark in LEGEND]
    for row, mark in zip(rows, LEGEND, strict=True):
        assert row[1].endswith(mark.mark), row


def test_the_space_gets_the_gradio_that_the_requirements_allow() -> None:
    meta = front_matter()
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = {
        requirement.name: requirement
        for requirement in (Requirement(line) for line in lines if line and line[0] not in "#-")
    }
    assert wanted["gradio"].specifier.contains(meta["sdk_version"])
    assert (ROOT / meta["app_file"]).is_file()
    assert len(meta["short_description"]) <= 60
    assert all(requirement.specifier for requirement in wanted.values()), "a bound is missing"


def test_every_requirement_has_a_reason() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        before = ""
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if line and line[0] not in "#-":
                assert before.startswith("#") or Requirement(before), f"{name}: {line}"
            before = line


def test_the_top_level_holds_exactly_what_was_agreed() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    top = {name.split("/")[0] for name in listed.stdout.split("\0") if name}
    agreed = {
        "app",
        "engine",
        "assets",
        "tests",
        "app.py",
        "requirements.txt",
        "requirements-dev.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
    }
    assert {name for name in top if not name.startswith(".")} == agreed


def test_every_local_file_the_documents_name_exists() -> None:
    for document in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for path in re.findall(r"`((?:app|engine|assets|tests|\.ci)/[\w./-]+)`", text):
            if "yours" not in path:
                assert (ROOT / path).exists(), f"{document}: {path}"
        for path in re.findall(r"\]\((assets/[\w./-]+)\)", text):
            assert (ROOT / path).exists(), f"{document}: {path}"


def test_the_bundled_weights_are_small_and_carry_a_card() -> None:
    folders = [
        catalog.ASSETS / model.folder
        for model in catalog.load().models.values()
        if model.source == "bundled"
    ]
    files = [path for folder in folders for path in folder.glob("*.safetensors")]
    assert files
    assert all(path.stat().st_size <= 9_000_000 for path in files)
    assert sum(path.stat().st_size for path in files) <= 30_000_000
    for folder in folders:
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert all(word in card for word in ("licence", "data", "training", "acceptance"))


def test_the_project_file_only_holds_tool_settings() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(settings) == {"tool"}


def test_the_speed_table_is_the_shipped_measurement() -> None:
    result = json.loads((ROOT / "assets/bench/smollm2-cpu.json").read_text(encoding="utf-8"))
    pooled = {row["method"]: row for row in result["rows"] if row["domain"] == "all"}
    theirs = pooled["transformers-plain"]["speedup"]
    listed = {row[0].strip("`"): row[1:] for row in rows_under("Is it faster?")[: len(pooled)]}
    assert list(listed) == list(pooled) == list(METHODS)
    for method, row in pooled.items():
        gamma, speed, ratio, over, *_ = listed[method]
        assert gamma == str(row["gamma"])
        assert speed == f"{row['tokens_per_second']:.1f}"
        spread = f"({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
        assert ratio == f"{row['speedup']:.2f} {spread}"
        assert over == f"{row['speedup'] / theirs:.2f}"


def test_the_domain_table_is_the_shipped_measurement() -> None:
    result = json.loads((ROOT / "assets/bench/smollm2-cpu.json").read_text(encoding="utf-8"))
    domains = list(catalog.load().presets)
    assert f"| method | {' | '.join(domains)} |" in README
    for method in ("mtp", "draft", "lookup"):
        own = {r["domain"]: r["speedup"] for r in result["rows"] if r["method"] == method}
        assert f"| `{method}` | {' | '.join(f'{own[d]:.2f}' for d in domains)} |" in README
