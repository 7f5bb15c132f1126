"""The settings: sampler and its options, profile, thresholds, interventions, seed.

A threshold that moves recolours the tokens on the screen behind at once, without the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Checkbox, Input, Label, Select

from entropix_mlx.errors import EntropixError, ProfileError
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.sampler_specs import FILTERS, SAMPLERS
from entropix_mlx.profiles.sections import MOST_FORKS
from entropix_mlx.settings import Settings, described
from entropix_mlx.traces.scales import fitting_scales

from ...answer import Answer
from ...gauges.plane import Plane
from ..dialogs import Overlay
from .sliders import HEADINGS, THRESHOLDS, Slider

NAME_WIDTH = 12
KEYS = "Enter use · Ctrl+R regenerate\nb before · Ctrl+S save profile · Esc discard"
EMPTY = {"profile": "name or file", "max_tokens": "-1: no limit", "seed": "random"}
"""What an empty field shows; those of the sampler's options, "the profile's"."""


@dataclass(frozen=True)
class TunedSettings:
    """What the screen shows at first, and its result."""

    settings: Settings
    ask: bool


class TuneScreen(Overlay[TunedSettings | None]):
    """Settings at the right edge; the conversation stays in view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "done", "Use from the next answer on"),
        Binding("ctrl+r", "try", "Regenerate with these"),
        Binding("b", "before", "Show the tokens as they were decided"),
        Binding("ctrl+s", "save", "Save the profile as a file", priority=True),
        Binding("escape,ctrl+z", "discard", "Change nothing"),
    ]

    def __init__(
        self,
        tuned: TunedSettings,
        preview: Callable[[Profile | None], Answer],
        try_out: Callable[[TunedSettings], None],
        save: Callable[[Profile], None],
    ) -> None:
        """Show settings.

        Args:
            preview: colours the tokens by a profile, None for the original one.
            try_out: uses settings, and answers once more with them.
            save: asks for a file, and writes a profile into it.
        """
        super().__init__()
        self._before = tuned
        self._preview = preview
        self._try_out = try_out
        self._save = save
        self._tried = False
        self._shows_before = False
        self._profile = Profile.load(tuned.settings.profile)
        self._named = self._profile.name  # the one that is loaded

    def compose(self) -> ComposeResult:
        with Vertical(id="tune"):
            with VerticalScroll():
                yield from self._rows()
            yield Label("", id="changes")
            yield Label(KEYS, classes="hint")
            yield Plane(id="tuning-plane")

    def _rows(self) -> ComposeResult:
        settings, profile = self._before.settings, self._profile
        yield Label(Content("Settings"), classes="title")
        yield Select(
            [(name, name) for name in SAMPLERS],
            value=settings.sampler,
            allow_blank=False,
            id="sampler",
            compact=True,
        )
        for name in ("profile", *FILTERS, "max_tokens", "seed"):
            with Horizontal(classes="row"):
                yield Label(name.replace("_", " ").ljust(NAME_WIDTH))
                yield _field(name, profile.name if name == "profile" else getattr(settings, name))
        with Horizontal(classes="row"):
            thinks, forks = profile.think.max_insertions > 0, profile.branch.max_branches > 0
            yield Tick("think", thinks, id="think", compact=True)
            yield Tick("branch", forks, id="branch", compact=True)
            yield Tick("ask", self._before.ask, id="ask", compact=True)
        yield Label(HEADINGS, classes="hint")
        for name in THRESHOLDS:
            value = getattr(profile.thresholds, name)
            yield Slider(name, value, _scale(name, profile))

    def on_mount(self) -> None:
        """Begin at the first threshold: most users come for these."""
        if not self.children:  # the app was left meanwhile
            return
        self.query(Slider).first().focus()
        self.on_select_changed()
        self.show_answer()
        self._say("← → move a threshold, Shift ten steps")

    def show_answer(self) -> None:
        self._show(self._preview(None))

    def on_slider_changed(self) -> None:
        if not self.children:
            return
        self._shows_before = False
        profile = self._changed_profile()
        preview = self._preview(profile)
        self._show(preview)
        self._say(f"{preview.changed} of {len(preview.steps)} tokens change strategy")

    def on_select_changed(self) -> None:
        for name in FILTERS:
            field = self.query_one(f"#{name}", Input)
            field.disabled = name not in self._taken
            if field.parent is not None:
                field.parent.display = not field.disabled

    def on_checkbox_changed(self, event: Checkbox.Changed) -> None:
        """Whoever wants to be asked at forks wants forks."""
        if event.checkbox.id == "ask" and event.value:
            self.query_one("#branch", Tick).value = True

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Load another profile and show its thresholds, or take the settings."""
        if event.input.id == "profile" and event.value.strip() not in ("", self._named):
            self._show_named_profile()
        else:
            self.action_done()

    def on_input_blurred(self, event: Input.Blurred) -> None:
        """Load it also without Enter, before one of its thresholds is moved."""
        if event.input.id == "profile" and self.children:
            self._show_named_profile()

    def action_done(self) -> None:
        if (tuned := self._tuned()) is not None:
            self._preview(None)  # the tokens on screen were decided by the settings before
            self.dismiss(tuned)

    def action_try(self) -> None:
        """Answer once more, with the same seed, beside the answer as it was."""
        if (tuned := self._tuned()) is not None:
            self._preview(None)
            self._tried = True
            self._try_out(tuned)
            self._say("regenerating: the first token that differs is marked")

    def action_save(self) -> None:
        if self._show_named_profile():
            self._save(self._changed_profile())

    def action_before(self) -> None:
        """Show the tokens as they were decided; the same key shows them as now again."""
        self._shows_before = not self._shows_before
        if self._shows_before:
            self._preview(None)
            self._say("before: b shows these thresholds again")
        else:
            self.on_slider_changed()

    def action_discard(self) -> None:
        self._preview(None)
        self.dismiss(self._before if self._tried else None)

    @property
    def _taken(self) -> frozenset[str]:
        return frozenset(SAMPLERS[str(self.query_one("#sampler", Select).value)].takes)

    def _tuned(self) -> TunedSettings | None:
        """Return what was set, or None and say what is wrong with it."""
        if not self._show_named_profile():
            return None
        try:
            settings = replace(
                self._before.settings,
                sampler=str(self.query_one("#sampler", Select).value),
                profile=self._changed_profile(),
                max_tokens=self._number("max_tokens") or Settings.max_tokens,
                seed=self._number("seed"),
                **{name: self._number(name) for name in FILTERS},
            )
            settings.check()
        except (ValueError, EntropixError) as error:
            self._say(str(error))
            return None
        return TunedSettings(settings, self.query_one("#ask", Tick).value)

    def _show_named_profile(self) -> bool:
        """Load the profile that was typed, if it is another; return False where that fails."""
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
        think = self._switched("think", "max_insertions")
        branch = self._switched("branch", "max_branches")
        return self._profile.replace({"thresholds": thresholds, "think": think, "branch": branch})

    def _switched(self, section: str, limit: str) -> dict[str, Any]:
        """Return the change that switches an intervention on or off, as its box says."""
        on = self.query_one(f"#{section}", Tick).value
        if on == (getattr(getattr(self._profile, section), limit) > 0):
            return {}
        usual = getattr(getattr(Profile.load(), section), limit) or MOST_FORKS
        return {limit: usual if on else 0}

    def _show(self, preview: Answer) -> None:
        self.query_one(Plane).answer = preview
        for slider in self.query(Slider):
            strategy, measurement, _ = slider.threshold
            measured = [step.metrics[measurement] for step in preview.steps]
            slider.show_tokens(measured, preview.counts(strategy))

    def _number(self, name: str) -> Any:
        field = self.query_one(f"#{name}", Input)
        if field.disabled or not field.value:
            return None
        whole = field.type == "integer"
        if not field.is_valid:
            raise ValueError(f"{name} must be a {'whole ' if whole else ''}number")
        return int(field.value) if whole else float(field.value)

    def _say(self, text: str) -> None:
        self.query_one("#changes", Label).update(Content(text))


def _field(name: str, value: object) -> Input:
    fraction = float in get_args(described()[name].type)
    return Input(
        "" if value is None else str(value),
        EMPTY.get(name, "the profile's"),
        type="text" if name == "profile" else "number" if fraction else "integer",
        valid_empty=True,
        compact=True,
        id=name,
    )


def _scale(threshold: str, profile: Profile) -> float:
    return fitting_scales(profile)[THRESHOLDS[threshold].measurement].most


class Tick(Checkbox):
    """A checkbox that reads without colours: Textual's shows an X whether it is on or not."""

    def render(self) -> Content:
        self.BUTTON_INNER = "✓" if self.value else " "
        return super().render()
