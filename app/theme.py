"""One palette and one legend, for the style sheet, the page's texts and the README.

Contract: `LEGEND` names every fate a token can have, its colour on light and on dark ground, and
the mark that tells it apart without colour. `css()` returns the whole style sheet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from engine.catalog import ASSETS

if TYPE_CHECKING:
    import gradio as gr


class Mark(NamedTuple):
    """How one fate looks. `light` and `dark` are "" where the text colour serves."""

    fate: str
    light: str
    dark: str
    mark: str


LEGEND: tuple[Mark, ...] = (
    Mark("pending", "#6B7280", "#9CA3AF", "dashed outline"),
    Mark("accepted", "#007A5A", "#35C08F", "solid underline"),
    Mark("rejected", "#B84A00", "#FF8A4C", "small, struck through"),
    Mark("unjudged", "#6B7280", "#9CA3AF", "small, dotted underline"),
    Mark("recovered", "#8A6100", "#F0B429", "left notch"),
    Mark("bonus", "#005A9C", "#5AB0F0", "overline"),
    Mark("target", "", "", "none"),
    Mark("cut", "#6B7280", "#9CA3AF", "crossed hatch"),
)
"""In the order in which the page's legend shows them."""

_GROUND = {  # name: (light, dark)
    "bg": ("#F4F5F7", "#12161B"),
    "panel": ("#FFFFFF", "#1A2027"),
    "sunk": ("#F8F9FA", "#151A20"),
    "line": ("#DDE1E6", "#2F3741"),
    "text": ("#1B2430", "#E6EAEF"),
    "muted": ("#566070", "#9AA5B4"),
    "ink": ("#1F2A38", "#E6EAEF"),
    "on-ink": ("#FFFFFF", "#12161B"),
    "focus": ("#005A9C", "#5AB0F0"),
    "warn": ("#B84A00", "#FF8A4C"),
    "shadow": ("rgb(20 30 45 / 14%)", "rgb(0 0 0 / 50%)"),
}


def colour(name: str, dark: bool) -> str:
    """Return the colour of a fate or of the ground.  Raises KeyError for an unknown name."""
    return _palette()[name][dark]


def colours(dark: bool) -> set[str]:
    """Return every colour there is on one ground."""
    return {pair[dark] for pair in _palette().values()}


def _palette() -> dict[str, tuple[str, str]]:
    return {**_GROUND, **{mark.fate: (mark.light, mark.dark) for mark in LEGEND if mark.light}}


def css() -> str:
    """Return the palette as CSS variables, followed by `assets/style.css`."""
    return f":root {variables(dark=False)}.dark {variables(dark=True)}{style()}"


def style() -> str:
    """Return `assets/style.css`, which only names the variables."""
    return (ASSETS / "style.css").read_text(encoding="utf-8")


def variables(dark: bool) -> str:
    """Return the palette on one ground as a block of CSS variables."""
    lines = [f"--dl-{name}: {pair[dark]};" for name, pair in _GROUND.items()]
    for mark in LEGEND:
        colour = mark.dark if dark else mark.light
        lines.append(f"--fate-{mark.fate}: {colour or 'var(--dl-text)'};")
    return "{\n  " + "\n  ".join(lines) + "\n}\n"


def theme() -> gr.themes.Base:
    """Return Gradio's plainest theme on our ground, with fonts that are already on the machine."""
    import gradio as gr  # seconds of import, which a replay file does not need

    sans = ("system-ui", "-apple-system", "Segoe UI", "Noto Sans", "Noto Sans CJK SC", "sans-serif")
    mono = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
    plain = gr.themes.Base(
        primary_hue="slate",
        neutral_hue="slate",
        spacing_size="sm",
        radius_size="md",
        font=sans,
        font_mono=mono,
    )
    both: dict[str, Any] = {
        "body_background_fill": "var(--dl-bg)",
        "body_text_color": "var(--dl-text)",
        "background_fill_primary": "var(--dl-panel)",
        "background_fill_secondary": "var(--dl-sunk)",
        "block_background_fill": "transparent",
        "block_label_text_color": "var(--dl-muted)",
        "block_title_text_color": "var(--dl-muted)",
        "block_info_text_color": "var(--dl-muted)",
        "body_text_color_subdued": "var(--dl-muted)",
        "border_color_primary": "var(--dl-line)",
        "input_background_fill": "var(--dl-panel)",
        "input_border_color": "var(--dl-line)",
        "button_primary_background_fill": "var(--dl-ink)",
        "button_primary_background_fill_hover": "var(--dl-muted)",
        "button_primary_text_color": "var(--dl-on-ink)",
        "button_secondary_background_fill": "var(--dl-panel)",
        "button_secondary_text_color": "var(--dl-text)",
        "button_secondary_border_color": "var(--dl-line)",
    }
    return plain.set(**both, **{f"{name}_dark": value for name, value in both.items()})
