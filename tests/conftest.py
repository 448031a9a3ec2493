"""For every test: one thread, no hub; and the default trio, loaded once."""

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pair():
    """The real default trio, for the tests marked `trio`."""
    from engine.errors import PlaygroundError
    from engine.runtime import load_pair

    try:
        return load_pair("smollm2")
    except PlaygroundError as error:
        if error.code != "target_missing" or os.environ.get("DRAFTLIGHT_REQUIRE_TRIO") == "1":
            raise
        pytest.skip(f"the target is not here and cannot be downloaded: {error}")
