"""The models on this machine: which to talk to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from entropix_mlx.backends.events import ModelsListed
from entropix_mlx.palette import printable

if TYPE_CHECKING:
    from entropix_mlx.checkpoints.inventory import LocalModel

NAME_CHARACTERS = 60


class ModelPicker(ModalScreen[str | None]):
    """Returns the name of the model that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close")]

    def __init__(self) -> None:
        """Begin with nothing: the models are being looked for."""
        super().__init__(classes="dialog")
        self._models: Sequence[LocalModel] = ()

    def compose(self) -> ComposeResult:
        """Make the list."""
        with Vertical():
            yield Label("Models on this machine")
            yield OptionList()
            yield Label("looking for models …", classes="hint")

    def receive(self, event: ModelsListed) -> None:
        """Show what was found."""
        self._models, error = event.models, event.error
        self.query_one(OptionList).add_options(map(_option, self._models))
        told = "Enter loads one; the conversation stays. Escape leaves this one."
        self.query_one(".hint", Label).update(Content(error or told))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Choose one."""
        self.dismiss(self._models[event.option_index].name)

    def action_close(self) -> None:
        """Choose none."""
        self.dismiss(None)


def _option(model: LocalModel) -> Option:
    name = model.name if len(model.name) <= NAME_CHARACTERS else f"…{model.name[-NAME_CHARACTERS:]}"
    told = f"{model.nbytes / 1e9:.2f} GB, {model.precision or '?'}, context {model.context or '?'}"
    fault = "" if model.fault is None else f" · does not run: {model.fault}"
    text = Content.styled(printable(name), "bold") + Content(f"\n  {told}{printable(fault)}")
    return Option(text, disabled=model.fault is not None)
