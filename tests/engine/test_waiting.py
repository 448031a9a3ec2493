"""Threads of the engine must not spin while they wait; a user's own choice stands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("chosen", "expected"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_the_user_chose_otherwise(chosen, expected):
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if chosen:
        env["OMP_WAIT_POLICY"] = chosen
    code = "import engine, os, sys; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == [expected, "False"]
