"""The only door to the torch side: a form becomes an iterator of events.

Contract: one `Session` serves the whole process and keeps one pair in memory. `start_loading`
returns at once and loads in a thread, which waits for the run that goes on and lets go of the pair
before; a pair that failed can be tried again, and so can the one before. `check` refuses a bad form
with a PlaygroundError before anything runs; `events` lets one run at a time use the engine and ends
within one round once `cancelled()` says so. The engine's runtime is imported inside the loading
thread, so this module costs nothing to import.

Words: a *loader* has the shape of `engine.runtime.load_pair`, which tests replace with a toy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gradio.utils import get_space

from app.form import Form, as_plain
from app.line import Line
from app.shown import Shown, shown_of
from engine import catalog, trace
from engine.errors import PlaygroundError
from engine.events import Event, Measured, Settings
from engine.preflight import Preflight, preflight

OF_THE_MACHINE = ("cost_curve",)
"""Measurements that do not depend on a run; they are kept, with their date, for all later ones."""

RECORDING = catalog.ASSETS / "traces" / "smollm2-mtp.jsonl"


class Progress(Protocol):
    """How far loading is, as `engine.models.source.Progress` says it."""

    @property
    def stage(self) -> str:
        """The name of what goes on."""

    @property
    def fraction(self) -> float | None:
        """0..1 within the stage, where known."""

    @property
    def detail(self) -> str:
        """What it is about."""


class Pair(Protocol):
    """A loaded pair, as `engine.runtime.LoadedPair` is one."""

    id: str

    @property
    def methods(self) -> tuple[str, ...]:
        """The ids of the methods it can run."""

    def check(self, method: str, prompt: str, settings: Settings) -> None:
        """Raise PlaygroundError when this cannot run."""

    def run(
        self, method: str, prompt: str, settings: Settings, *, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        """Yield the events of one run."""

    def measure(
        self,
        kind: str,
        method: str,
        prompt: str,
        settings: Settings,
        *,
        cancelled: Callable[[], bool],
        **options: Any,
    ) -> Measured:
        """Run an instrument of `engine.instruments`."""

    def memory(self, method: str) -> int | None:
        """Return the bytes a method's weights and caches take; None where nobody counts."""


class Loader(Protocol):
    """Loads a pair and reports how far it is."""

    def __call__(
        self, pair_id: str, *, device: str | None, report: Callable[[Progress], None]
    ) -> Pair:
        """Return the loaded pair.  Raises PlaygroundError."""


@dataclass(slots=True)
class Loading:
    """The state of loading one pair; the thread writes it, pages read it."""

    pair_id: str
    stage: str = "find"
    fraction: float | None = None
    detail: str = ""
    pair: Pair | None = None
    error: PlaygroundError | None = None
    """Done without either: another pair was asked for before this one's turn came."""

    kept: dict[str, Measured] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)

    def note(self, progress: Progress) -> None:
        """Take a progress report."""
        self.stage, self.fraction = progress.stage, progress.fraction
        self.detail = progress.detail


class Session:
    """Keeps a pair loaded, checks forms, and hands out one run at a time."""

    def __init__(
        self,
        load: Loader | None = None,
        *,
        device: str | None = None,
        recording: Path = RECORDING,
    ) -> None:
        self.catalog = catalog.load()
        self.line = Line()
        self._load = load or load_with_engine
        self._device = device
        self._recording = recording
        self._loadings: dict[str, Loading] = {}
        self._latest: Loading | None = None  # who asked last decides what is loaded
        self._guard = threading.Lock()
        self._engine = threading.Lock()

    @property
    def default_pair(self) -> str:
        """The pair the page opens with."""
        return next(iter(self.catalog.pairs))

    def methods(self, pair_id: str) -> tuple[str, ...]:
        """Return the methods the page offers for a pair.

        On a Space only the catalogue's: a stranger's link must not name that machine's folders.
        Raises PlaygroundError: unknown_pair.
        """
        pair = self.catalog.pair(pair_id, listed=bool(get_space()))
        offered = self.catalog.methods_of(pair)
        return tuple(name for name in offered if self.catalog.methods[name].page)

    def loading(self, pair_id: str) -> Loading | None:
        """Return how far a pair is, or None when nobody asked for it yet."""
        return self._loadings.get(pair_id)

    def start_loading(self, pair_id: str) -> Loading:
        """Load a pair in the background unless that goes on or went well; a failure is retried.

        The pair before is let go. Ask only when nobody with another pair is ahead in the line.
        """
        with self._guard:
            known = self._loadings.get(pair_id)
            if known is not None and known.error is None:
                self._latest = known
                return known
            loading = self._latest = self._loadings[pair_id] = Loading(pair_id)
        thread = threading.Thread(
            target=self._load_into, args=(loading,), name=f"load-{pair_id}", daemon=True
        )
        thread.start()
        return loading

    def look(self, pair_id: str, *, ask_hub: bool = False, measure: bool = False) -> Preflight:
        """Say what can be told of a pair before loading, or what it takes now that it is loaded.

        `ask_hub` reads small files of its repositories, `measure` times this machine for its shape,
        once the engine is free.  Raises PlaygroundError: unknown_pair.
        """
        pair = self.catalog.pair(pair_id, listed=bool(get_space()))
        held = {key: self._held(key) for key in list(self._loadings)}
        with self._engine if measure else nullcontext():
            found = preflight(
                self.catalog,
                pair,
                device=self._device,
                ask_hub=ask_hub,
                measure=measure,
                freed=sum(size or 0 for size in held.values()),
            )
        taken = held.get(pair_id)
        return found if taken is None else found.loaded(taken)

    def _held(self, pair_id: str) -> int | None:
        """Return the bytes that a loaded pair keeps, with the method that keeps most."""
        sizes = [self.memory(pair_id, method) for method in self.methods(pair_id)]
        return max((size for size in sizes if size is not None), default=None)

    def check(self, form: Form) -> None:
        """Refuse what cannot run.  Raises PlaygroundError; knows token counts once loaded."""
        known = self.methods(form.pair)
        if form.method not in known:
            raise PlaygroundError(
                "unknown_method",
                f"The pair {form.pair} has no method {form.method!r}.",
                f"Choose one of: {', '.join(known)}.",
                method=form.method,
                known=", ".join(known),
            )
        loading = self.loading(form.pair)
        if loading is not None and loading.pair is not None:
            loading.pair.check(form.method, form.prompt, _settings(form, form.method))

    def events(self, form: Form, method: str, cancelled: Callable[[], bool]) -> Iterator[Event]:
        """Yield the events of a run, once its pair is loaded and the engine is free."""
        with self._engine_of(form.pair, cancelled) as pair:
            if pair is not None:
                settings = _settings(form, method)
                yield from pair.run(method, form.prompt, settings, cancelled=cancelled)

    def measure(
        self,
        pair_id: str,
        kind: str,
        method: str,
        prompt: str,
        settings: Settings,
        cancelled: Callable[[], bool],
        **options: Any,
    ) -> Iterator[Measured]:
        """Yield what an instrument measured, once the pair is loaded and the engine is free."""
        with self._engine_of(pair_id, cancelled) as pair:
            if pair is not None:
                found = pair.measure(kind, method, prompt, settings, cancelled=cancelled, **options)
                loading = self.loading(pair_id)
                if kind in OF_THE_MACHINE and loading is not None:
                    loading.kept[kind] = found
                yield found

    def kept(self, pair_id: str) -> tuple[Measured, ...]:
        """Return what was measured of a loaded pair on this machine, whoever asked for it."""
        loading = self.loading(pair_id)
        return () if loading is None else tuple(loading.kept.values())

    @contextmanager
    def _engine_of(self, pair_id: str, cancelled: Callable[[], bool]) -> Iterator[Pair | None]:
        """Keep the engine for one user of a loaded pair; None when that was cancelled first."""
        # A stopped run still finishes its round; the next one waits for it here.
        while not self._engine.acquire(timeout=0.05):
            if cancelled():
                yield None
                return
        try:
            loading = self.loading(pair_id)
            if loading is None or loading.pair is None:
                raise ValueError(f"pair {pair_id!r} is not loaded")
            yield loading.pair
        finally:
            self._engine.release()

    def memory(self, pair_id: str, method: str) -> int | None:
        """Return the bytes a method keeps in memory, once its pair is loaded."""
        loading = self.loading(pair_id)
        return None if loading is None or loading.pair is None else loading.pair.memory(method)

    def recording(self) -> Shown | None:
        """Return the run the page opens with, or None where there is no (readable) file."""
        if not self._recording.is_file():
            return None
        try:
            return shown_of(trace.read(self._recording), self._recording.name)
        except PlaygroundError:
            return None

    def _load_into(self, loading: Loading) -> None:
        """Load one pair in place of the one before, once whoever uses the engine is done."""
        with self._engine:
            if not self._take_place(loading):
                loading.done.set()
                return
            try:
                loading.pair = self._load(loading.pair_id, device=self._device, report=loading.note)
                loading.stage, loading.fraction = "ready", 1.0
            except PlaygroundError as error:
                # The frames of its traceback hold what was loaded until then.
                loading.error = error.with_traceback(None)
            except Exception as error:  # a page must say what broke, whatever it was
                loading.error = unexpected(error)
            finally:
                loading.done.set()

    def _take_place(self, coming: Loading) -> bool:
        """Let go of the pair before; or of this one, when another was asked for meanwhile."""
        with self._guard:
            if self._latest is not coming:
                self._loadings = {k: v for k, v in self._loadings.items() if v is not coming}
                return False
            for loading in self._loadings.values():
                if loading is not coming:
                    loading.pair = None
            self._loadings = {coming.pair_id: coming}
            return True


def unexpected(error: BaseException) -> PlaygroundError:
    """Return an error nobody foresaw as one the page can show."""
    reason = f"{type(error).__name__}: {error}"
    return PlaygroundError(
        "unexpected",
        f"Something went wrong: {reason}.",
        "Please try again; if it comes back, report this sentence.",
        reason=reason,
    )


def _settings(form: Form, method: str) -> Settings:
    if method == "plain":
        return as_plain(form.settings)
    return form.settings


def load_with_engine(
    pair_id: str, *, device: str | None, report: Callable[[Progress], None]
) -> Pair:
    """Load a pair as the page does, and leave a core to the browser that draws it."""
    from engine.runtime import load_pair  # torch comes with it: seconds, so never at import

    # On one's own machine the browser draws on the same cores, and threads that wait for one which
    # is taken away wait at every step. On a Space the browser is elsewhere.
    spare = 0 if get_space() else 1
    pair: Pair = load_pair(pair_id, device=device, report=report, spare_cores=spare)
    return pair
