"""Start the page: `python app.py`, then open the address it prints."""

from __future__ import annotations

import argparse
import os

# `gradio app.py` imports this file as `app`; let `app.x` still find the package.
__path__ = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "app")]

from app.main import build, launch_options
from app.session import Session


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Draftlight: see speculative decoding happen.")
    parser.add_argument("--device", help="cpu, cuda, ... (default: the best one here)")
    parser.add_argument("--host", help="0.0.0.0 serves the local network")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860")
    parser.add_argument("--no-preload", action="store_true", help="load the model at the first run")
    return parser.parse_args()


if __name__ == "__main__":
    args = options()
    session = Session(device=args.device)
    if not args.no_preload:
        session.start_loading(session.default_pair)
    demo = build(session)
    _, address, _ = demo.launch(
        server_name=args.host, server_port=args.port, prevent_thread_lock=True, **launch_options()
    )
    print(f"Draftlight is at {address}", flush=True)  # noqa: T201
    demo.block_thread()
else:
    demo = build()
