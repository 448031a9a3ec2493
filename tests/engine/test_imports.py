"""Imports go one way, and the light parts stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "engine"
FILES = sorted(ENGINE.rglob("*.py"))
PURE = {
    *("events", "trace", "sound", "typed", "metrics", "books", "ledger", "theory", "catalog"),
    *(
        "errors",
        "check",
        "support",
        "request",
        "foreign_logs",
        "foreign_record",
        "prefix",
        "replay",
    ),
    *("vocabularies", "safetensors_head"),
}
LIGHT = "engine.models.source"  # not pure, but what it imports at its top is
PAGE = {"app", "gradio", "plotly", "pandas", "matplotlib"}


def module_name(path):
    return ".".join(path.relative_to(ENGINE.parent).with_suffix("").parts)


def imported(path, *, anywhere=True):
    """Every module that a file imports, by its full name; functions included if `anywhere`."""
    names = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def test_there_is_something_to_look_at():
    assert {"engine.decode", "engine.verify", "engine.models.hf"} <= set(map(module_name, FILES))
    found = {path.stem for path in ENGINE.glob("*.py")} & PURE
    assert found == PURE


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_the_engine_never_imports_what_belongs_to_the_page(path):
    assert not {name.partition(".")[0] for name in imported(path)} & PAGE


def not_pure(names):
    """The names that are neither of the standard library nor of a pure module."""
    pure = {f"engine.{name}" for name in PURE} | {LIGHT}
    allowed = {"engine", "engine.models"}
    return {
        name
        for name in names
        if name.partition(".")[0] not in sys.stdlib_module_names
        and name not in pure | allowed
        and name.rpartition(".")[0] not in pure
    }


@pytest.mark.parametrize("name", sorted(PURE & {path.stem for path in ENGINE.glob("*.py")}))
def test_a_pure_module_needs_only_the_standard_library_and_other_pure_ones(name):
    assert not not_pure(imported(ENGINE / f"{name}.py"))


def test_finding_the_weights_needs_nothing_heavy_until_it_converts_them():
    path = ENGINE / "models" / "source.py"
    assert not not_pure(imported(path, anywhere=False))
    assert not_pure(imported(path)) == {
        "engine.models.gguf_checkpoint",
        "engine.models.gguf_checkpoint.convert",
    }


def test_importing_the_light_parts_loads_nothing_heavy():
    code = (
        "import sys, engine, engine.events, engine.metrics, engine.catalog, engine.trace\n"
        "import engine.preflight\n"
        "import engine.models.source\n"
        "heavy = {'torch', 'transformers', 'numpy', 'gguf', 'tokenizers', 'gradio'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ENGINE.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_command_line_answers_help_without_torch():
    code = (
        "import sys\n"
        "from engine.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ENGINE.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
