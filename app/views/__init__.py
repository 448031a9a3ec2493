"""Views: pure functions from recorded events and `Measured` to blocks that a panel draws.

Contract: a view imports neither gradio nor torch, reads no clock and no file, and says what to do
where it has nothing to show. To add one, write a module with `view(shown) -> list[Block]` and give
it a place in `app/tabs/inspect.py`.
"""
