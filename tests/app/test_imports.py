"""Imports go one way: app.py -> app -> engine, and app never needs torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from engine.catalog import ASSETS

ROOT = ASSETS.parent
HEAVY = {"torch", "transformers", "safetensors", "tokenizers"}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_app_never_imports_torch() -> None:
    for path in [ROOT / "app.py", *(ROOT / "app").rglob("*.py")]:
        assert not {name.split(".")[0] for name in imported(path)} & HEAVY, path.name


def test_only_the_session_opens_the_door_to_the_runtime() -> None:
    names = ("catalog", "errors", "events", "metrics", "books", "ledger", "trace", "policy")
    more = ("foreign_logs", "foreign_record", "prefix", "replay", "theory", "check", "support")
    light = ("costs", "preflight", "burden")  # for their records; the rest is imported on the call
    pure = {f"engine.{name}" for name in (*names, *more, *light)}
    for path in (ROOT / "app").rglob("*.py"):
        inside = {name for name in imported(path) if name.startswith("engine.")}
        assert path.name == "session.py" or inside <= pure, path.name


def test_engine_never_imports_the_page() -> None:
    for path in (ROOT / "engine").rglob("*.py"):
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & {"app", "gradio", "plotly", "pandas"}, path.name


def test_the_page_opens_without_torch() -> None:
    code = "import sys, app.main; app.main.build(); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=120)
    assert done.returncode == 0
