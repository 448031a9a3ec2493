"""Waiting threads of the engine must not spin for long; a user's own choice stands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, [None, "20000"]),
        ({"GOMP_SPINCOUNT": "7"}, [None, "7"]),
        ({"OMP_WAIT_POLICY": "active"}, ["active", None]),
    ],
    ids=str,
)
def test_threads_stop_spinning_soon_unless_the_user_chose_otherwise(chosen, expected):
    env = {name: value for name, value in os.environ.items() if name not in NAMES} | chosen
    code = (
        "import engine, os, sys; "
        f"print([os.environ.get(name) for name in {NAMES}], 'torch' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == f"{expected} False"
