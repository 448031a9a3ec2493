"""The left side of the playground: what a visitor fills in.

Contract: `Controls` lays its widgets out inside an open `gr.Blocks`; `values` are those that
`read_form` takes, in the order of `FIELDS`.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import gradio as gr

from app import i18n, pairs
from app.own_pair import OwnPair
from app.session import Session
from app.wording import Say, Wording

DEFAULT_PRESET = "code"
NUMBERS = (("temperature", 0, 0.1), ("seed", 0, 1), ("max_new_tokens", 128, 16))
MORE_NUMBERS = (
    *(("top_k", 0, 10), ("top_p", 1, 0.05)),
    *(
        ("min_p", 0, 0.05),
        ("repetition_penalty", 1, 0.05),
        ("confidence", 0, 0.05),
        ("head_rows", 0, 1024),
    ),
)
"""Name, value and step of the number fields; the second group lies in the accordion."""

EXPLAINED = ("confidence", "head_rows")
"""Fields with a line of help below their label; `fields.js` gives "auto" its own as a tooltip."""

_CHIP: dict[str, Any] = {
    "size": "sm",
    "min_width": 0,
    "elem_classes": "chip",
    "visible": False,
}
FIELDS = (
    *("pair", "method", "prompt", "gamma", "adaptive", "compare", "stop"),
    *(name for name, _, _ in (*NUMBERS, *MORE_NUMBERS)),
)
"""The arguments of `read_form`, in the order of `Controls.values`."""


class Controls:
    """The widgets, by name; `form` lays them out."""

    def __init__(self, session: Session, wording: Wording) -> None:
        self.session = session
        self.methods = session.methods(session.default_pair)
        self._wording = wording
        self._add, self._button = wording.add, wording.button

    @property
    def values(self) -> list[Any]:
        """The widgets that make a form."""
        return [
            *(self.pair, self.method, self.prompt, self.gamma, self.adaptive, self.compare),
            *(self.stop_texts, *self.numbers),
        ]

    def form(self) -> None:
        """Lay out the column of controls."""
        # The fields scroll inside their column; Run and Stop never leave the screen.
        with gr.Column(elem_id="dl-form"):
            self._fields()
        with gr.Row(elem_id="dl-actions"):
            self.run = self._button("run", variant="primary")
            self.stop = self._button("stop")
            self.link = self._button("link")
        gr.HTML('<div class="dl-queue" role="status"></div>', elem_id="queue")

    def _fields(self) -> None:
        # The choices depend on what is chosen as well as on the language: see `offered`.
        say = partial(i18n.text, i18n.DEFAULT)
        default = self.session.default_pair
        pairs_to_choose = pairs.choices(say, self.session.catalog)
        self.pair = self._field(gr.Dropdown, "pair", choices=pairs_to_choose, value=default)
        self.model = gr.HTML("", elem_id="model")
        self.preflight = gr.HTML("", elem_id="preflight")
        with gr.Row(elem_id="dl-preflight-more", elem_classes="chips"):
            self.ask_hub = self._button("ask-hub", **_CHIP)
            self.profile = self._button("profile", **_CHIP)
        self.own = OwnPair(self._wording)
        self.method = self._add(
            gr.Radio,
            lambda say: {"label": say("label.method")},
            choices=method_choices(say, self.methods),
            value=default_method(self.methods),
            interactive=True,
            elem_id="method",
            elem_classes="segmented",
        )
        self.prompt = prompt_box(self.session, self._wording, lines=4)
        self._gamma()
        self.numbers = self._numbers("dl-fields", NUMBERS)
        self._more()
        self.compare = self._field(gr.Checkbox, "compare", value=True)

    def _gamma(self) -> None:
        with gr.Row(elem_id="dl-gamma"):
            choices = [(str(gamma), gamma) for gamma in range(1, 9)]
            best = {name: method.gamma for name, method in self.session.catalog.methods.items()}
            self.gamma = self._field(
                gr.Radio,
                "gamma",
                choices=choices,
                value=best[self.method.value] or 1,
                elem_classes="segmented",
            )
            self.adaptive = self._field(gr.Checkbox, "adaptive", value=False)
        # In the browser: each method starts where it was measured to do best.
        self.method.input(
            None,
            [self.method, self.gamma],
            self.gamma,
            js=f"(method, gamma) => ({json.dumps(best)})[method] || gamma",
            show_progress="hidden",
            api_visibility="private",
        )

    def _numbers(self, elem_id: str, numbers: tuple[tuple[str, float, float], ...]) -> list[Any]:
        # No minimum or maximum here: Gradio would answer in English before our own check does.
        with gr.Row(elem_id=elem_id, elem_classes="fields"):
            return [
                self._field(gr.Number, name, value=value, step=step, min_width=60)
                for name, value, step in numbers
            ]

    def _more(self) -> None:
        self.more = self._add(
            gr.Accordion, lambda say: {"label": say("label.more")}, open=False, elem_id="more"
        )
        with self.more:
            self.numbers += self._numbers("dl-more-fields", MORE_NUMBERS)
            self.stop_texts = self._add(
                gr.Textbox,
                lambda say: {"label": say("label.stop"), "placeholder": say("stop.placeholder")},
                value="",
                lines=2,
                max_lines=2,
                elem_id="stop_texts",
                interactive=True,
            )

    def _field(self, kind: Any, name: str, **options: Any) -> Any:
        return self._add(
            kind,
            lambda say: {
                "label": say(f"label.{name}"),
                **({"info": say(f"help.{name}")} if name in EXPLAINED else {}),
            },
            elem_id=name,
            interactive=True,
            **options,
        )


def prompt_box(session: Session, wording: Wording, *, lines: int, before: str = "") -> Any:
    """Lay out a prompt and its presets; ids are `<before>prompt`, `<before>preset-<id>`."""
    presets = session.catalog.presets
    prompt = wording.add(
        gr.Textbox,
        lambda say: {"label": say("label.prompt"), "placeholder": say("prompt.placeholder")},
        value=presets[DEFAULT_PRESET].prompt,
        lines=lines,
        max_lines=lines,
        elem_id=f"{before}prompt",
        interactive=True,
    )
    with gr.Row(elem_classes="chips"):
        for preset in presets.values():
            chip = wording.add(
                gr.Button,
                partial(_preset_name, preset.id),
                elem_id=f"{before}preset-{preset.id}",
                elem_classes="chip",
                size="sm",
                min_width=0,
            )
            # In the browser: a preset needs no round trip, whatever the engine does.
            chip.click(
                None,
                outputs=prompt,
                js=f"() => {json.dumps(preset.prompt)}",
                show_progress="hidden",
                api_visibility="private",
            )
    return prompt


def offered(session: Session, language: str, pair_id: str) -> tuple[Any, Any]:
    """Return updates that make the pair and method fields offer what there is, in a language."""
    say = partial(i18n.text, language)
    pair_choices = pairs.choices(say, session.catalog, pair_id)
    methods = method_choices(say, session.methods(pair_id))
    return gr.update(choices=pair_choices, value=pair_id), gr.update(choices=methods)


def default_method(methods: tuple[str, ...]) -> str:
    """Return the method the page starts with."""
    return next((name for name in ("mtp", "draft") if name in methods), methods[0])


def method_choices(say: Say, methods: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the method switch's choices."""
    return [(say(f"method.{name}"), name) for name in methods]


def _preset_name(preset_id: str, say: Say) -> dict[str, Any]:
    return {"value": say(f"preset.{preset_id}")}
