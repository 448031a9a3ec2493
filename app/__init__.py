"""What people see: the page, its texts and its drawings; it never imports torch.

Contract: `app` folds the engine's events into views. `session` is the only door to the torch side
and opens it lazily, so that the page is alive before a model is.
"""
