"""The settings: sampler, profile, temperature, thresholds, interventions, seed.

A threshold that moves recolours the tokens on the screen behind at once, without the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Checkbox, Input, Label, Select

from entropix_mlx.configuration.writing import Value
from entropix_mlx.errors import EntropixError, ProfileError
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers.registry import SAMPLERS
from entropix_mlx.settings import Settings

from ...drawing import scales
from .sliders import THRESHOLDS, Headings, Preview, Slider
from .tuning_plane import TuningPlane


class Tick(Checkbox):
    """Shows ✓, or nothing."""

    def render(self) -> Content:
        """Return the box and its label."""
        self.BUTTON_INNER = "✓" if self.value else " "
        return super().render()


NAME_WIDTH = 12
HINT = "Enter use · Ctrl+R again · Ctrl+D keep · Esc back"
LINES_WITH_PLANE = 16
"""Lines of a screen that has room for the plane beside the sliders."""


@dataclass(frozen=True)
class Tuned:
    """What the user settled on."""

    settings: Settings
    ask: bool
    profile: str | None = None
    """The name or file of another profile, if one was chosen."""
    regenerate: bool = False
    keep: bool = False
    """Whether these are to be defaults."""


class TuneScreen(ModalScreen[Tuned | None]):
    """Settings at the right edge; the conversation stays in view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "done", "Use from the next answer on"),
        Binding("ctrl+r", "done('regenerate')", "Use and answer once more"),
        Binding("ctrl+d", "done('keep')", "Use, also as defaults", priority=True),
        Binding("escape,ctrl+z", "forget", "Leave everything as it was"),
    ]

    def __init__(
        self, settings: Settings, ask: bool, preview: Callable[[Profile | None], Preview]
    ) -> None:
        """Show settings.

        Args:
            settings: where to begin; their profile is loaded.
            ask: whether the user is asked at forks.
            preview: colours the tokens by a profile, None for what was decided.
        """
        super().__init__()
        self._settings = settings
        self._ask = ask
        self._preview = preview
        self._profile = Profile.load(settings.profile)
        self._first = self._named = self._profile.name  # in the field, and loaded

    def compose(self) -> ComposeResult:
        """Make a row for each setting, and the plane below them."""
        with Vertical(id="tune"):
            with VerticalScroll():
                yield from self._rows()
            yield Label("", id="changes")
            yield Label(HINT, classes="hint")
            yield TuningPlane(self._profile, id="tuning-plane")

    def _rows(self) -> ComposeResult:
        settings, profile = self._settings, self._profile
        yield Label(Content("Settings"), classes="title")
        yield Select(
            [(name, name) for name in SAMPLERS],
            value=settings.sampler,
            allow_blank=False,
            id="sampler",
            compact=True,
        )
        yield from self._field("profile", profile.name, "name or file")
        yield from self._field("temperature", settings.temperature, "the profile's")
        yield from self._field("seed", settings.seed, "another each time")
        with Horizontal(classes="row"):
            thinks, forks = profile.think.max_insertions > 0, profile.branch.max_branches > 0
            yield Tick("think", thinks, id="think", compact=True)
            yield Tick("branch", forks, id="branch", compact=True)
            yield Tick("ask", self._ask, id="ask", compact=True)
        yield Headings()
        for name in THRESHOLDS:
            value = getattr(profile.thresholds, name)
            yield Slider(name, value, _scale(name, profile))

    def _field(self, name: str, value: object, placeholder: str) -> ComposeResult:
        with Horizontal(classes="row"):
            yield Label(name.ljust(NAME_WIDTH))
            text = "" if value is None else str(value)
            yield Input(text, placeholder=placeholder, id=name, compact=True)

    def on_mount(self) -> None:
        """Begin at the first threshold: it is what people come for."""
        self.query(Slider).first().focus()
        self._show(self._preview(None), self._profile)
        self._say("← → move a threshold, Shift+← → far; or drag it")

    def on_resize(self, event: Resize) -> None:
        """Leave the plane out where the sliders need the room."""
        self.query_one(TuningPlane).display = event.size.height >= LINES_WITH_PLANE

    def on_slider_changed(self) -> None:
        """Recolour, and tell how many tokens would change."""
        profile = self._changed_profile()
        preview = self._preview(profile)
        self._show(preview, profile)
        self._say(f"{preview.differing} of {len(preview.steps)} tokens would change")

    def on_tuning_plane_dragged(self, event: TuningPlane.Dragged) -> None:
        """Move the thresholds that are dragged."""
        for name in event.names:
            slider = self.query_one(f"#slider-{name}", Slider)
            slider.show(event.value, slider.most)
        self.on_slider_changed()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Load another profile, and show its thresholds; else take the settings."""
        if event.input.id == "profile" and event.value.strip() not in ("", self._named):
            self._show_named_profile()
        else:
            self.action_done()

    def on_input_blurred(self, event: Input.Blurred) -> None:
        """Do so also without Enter, before a threshold of that profile is moved."""
        if event.input.id == "profile":
            self._show_named_profile()

    def action_done(self, also: str = "") -> None:
        """Take the settings; `also` "regenerate" the answer, or "keep" them as defaults."""
        if not self._show_named_profile():
            return
        try:
            settings = replace(
                self._settings,
                sampler=str(self.query_one("#sampler", Select).value),
                profile=self._changed_profile(),
                temperature=self._number("temperature", float),
                seed=self._number("seed", int),
            )
            settings.check()
        except (ValueError, EntropixError) as error:
            self._say(str(error))
            return
        self._preview(None)  # the tokens on screen were decided by the settings before
        ask = self.query_one("#ask", Tick).value
        named = self.query_one("#profile", Input).value.strip()
        profile = None if named in ("", self._first) else named
        self.dismiss(Tuned(settings, ask, profile, also == "regenerate", also == "keep"))

    def action_forget(self) -> None:
        """Leave everything as it was."""
        self._preview(None)
        self.dismiss(None)

    def _show_named_profile(self) -> bool:
        """Load the profile that was typed, if it is another; if it cannot be, say why."""
        name = self.query_one("#profile", Input).value.strip()
        if name in ("", self._named):
            return True
        try:
            self._profile = Profile.load(name)
        except ProfileError as error:
            self._say(str(error))
            return False
        self._named = name
        for slider in self.query(Slider):
            name = slider.name or ""
            value = getattr(self._profile.thresholds, name)
            slider.show(value, _scale(name, self._profile))
        self.on_slider_changed()
        return True

    def _changed_profile(self) -> Profile:
        thresholds = {slider.name or "": slider.value for slider in self.query(Slider)}
        think: dict[str, Any] = {}
        branch: dict[str, Any] = {}
        if not self.query_one("#think", Tick).value:
            think["max_insertions"] = 0
        elif self._profile.think.max_insertions == 0:
            think["max_insertions"] = Profile.load().think.max_insertions
        if not self.query_one("#branch", Tick).value:
            branch["max_branches"] = 0
        elif self._profile.branch.max_branches == 0:
            branch["max_branches"] = Profile.load().branch.max_branches
        return self._profile.replace(
            {"thresholds": thresholds, "think": think, "branch": branch, "cntp": branch}
        )

    def _show(self, preview: Preview, profile: Profile) -> None:
        """Show the answer's tokens under every slider and on the plane."""
        plane = self.query_one(TuningPlane)
        plane.show_strategies(preview.steps, preview.strategies, profile)
        for slider in self.query(Slider):
            strategy, measurement, _ = slider.threshold
            measured = [step.metrics[measurement] for step in preview.steps]
            slider.show_tokens(measured, preview.counts(strategy))

    def _number(self, name: str, kind: type[float] | type[int]) -> Any:
        text = self.query_one(f"#{name}", Input).value.strip()
        if not text:
            return None
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{name} must be a number, not {text!r}") from None

    def _say(self, text: str) -> None:
        self.query_one("#changes", Label).update(Content(text))


def _scale(threshold: str, profile: Profile) -> float:
    """Return the end of a threshold's scale."""
    return scales(profile)[THRESHOLDS[threshold].measurement].most


SET, SECTION = "set", "thresholds"


def kept_settings(
    tuned: Tuned, usual: Profile, configured: Mapping[str, object]
) -> dict[str, Value | None]:
    """Return the options that make settings the defaults; None takes one out of the file.

    Args:
        tuned: what the user settled on.
        usual: what holds where the file does not change it: a threshold that is as there is not
            written.
        configured: the options that the file has now.
    """
    settings, own = tuned.settings, Profile.load(tuned.settings.profile)
    values: dict[str, Value | None] = {
        "sampler": settings.sampler,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "ask": tuned.ask or None,
        "no-think": own.think.max_insertions == 0 or None,
        "no-branch": own.branch.max_branches == 0 or None,
        SET: _assignments(own, usual, configured) or None,
    }
    return values if tuned.profile is None else values | {"profile": tuned.profile}


def _assignments(own: Profile, usual: Profile, configured: Mapping[str, object]) -> list[str]:
    """Return what the file sets, with the thresholds of a profile in place of its own."""
    before = configured.get(SET)
    lines = [str(line) for line in before] if isinstance(before, list) else []
    named = {name: f"{SECTION}.{name}" for name in THRESHOLDS}
    fields = {line: line.partition("=")[0].strip() for line in lines}
    written = set(fields.values())
    values = {
        field: getattr(own.thresholds, name)
        for name, field in named.items()
        if field in written or getattr(own.thresholds, name) != getattr(usual.thresholds, name)
    }
    others = [line for line in lines if fields[line] not in values]
    return [*others, *(f"{field}={value}" for field, value in values.items())]
