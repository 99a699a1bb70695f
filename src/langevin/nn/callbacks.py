"""Callbacks that add draws to a bank: for the Trainers of Hugging Face and Lightning."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from langevin.checks import check_integer, import_extra, level_of_caller, needs
from langevin.diagnostics.trust import TrustWarning
from langevin.nn.bank import SampleBank
from langevin.optim import LangevinOptimizer
from langevin.optim.wrapped import unwrap_optimizer

if TYPE_CHECKING:
    from torch import nn

__all__ = ["lightning_callback", "trainer_callback"]


class _Recorder:
    """Adds the model to a bank after each step of the optimizer, from step `burn_in` on."""

    def __init__(self, who: str, bank: SampleBank, burn_in: int) -> None:
        if not isinstance(bank, SampleBank):
            raise needs(who, "bank", "a SampleBank", bank, TypeError)
        self.who, self.bank = who, bank
        self.burn_in = check_integer(who, "burn_in", burn_in, 0)
        self.last = 0  # the last step that was counted

    def start(self, optimizer: Any, clip: float | None, setting: str) -> None:
        """Warn if the Trainer clips gradients, or if its optimizer does not sample."""
        if clip:
            text = f"gradients are clipped ({setting}={clip:g}), so the draws spread too wide"
            self._warn(f"{text}: set {setting}=0 and, if the chain diverges, a smaller lr")
        optimizer = unwrap_optimizer(optimizer)
        if not isinstance(optimizer, LangevinOptimizer):
            text = f"the optimizer is {type(optimizer).__name__}, not one of langevin.optim"
            self._warn(f"{text}, so the draws do not follow the posterior")

    def step(self, model: nn.Module, step: int) -> None:
        """Add the model, unless gradients are still being accumulated."""
        if self.last < step > self.burn_in:
            self.bank.add(model, step=step)
        self.last = step

    def _warn(self, text: str) -> None:
        warnings.warn(f"{self.who}: {text}", TrustWarning, stacklevel=level_of_caller())


def trainer_callback(bank: SampleBank, *, burn_in: int = 0) -> Any:
    """Return a `transformers.TrainerCallback` that adds a draw to a bank after each step.

    Pass the optimizer as ``Trainer(..., optimizers=(optimizer, scheduler))``. Hugging Face's
    Trainer clips gradients by default: set ``max_grad_norm=0``, or the callback warns. Without a
    scheduler it lets the learning rate fall to zero: ``lr_scheduler_type="constant"``.

    Args:
        bank: keeps every `thin`-th draw; it is closed when the training ends.
        burn_in: number of optimizer steps before the first draw.

    Raises:
        ImportError: transformers is not installed (``pip install langevin[huggingface]``).
    """
    base: Any = import_extra("trainer_callback()", "transformers", "huggingface").TrainerCallback
    recorder = _Recorder("trainer_callback", bank, burn_in)

    class BankCallback(base):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            recorder.last = state.global_step
            recorder.start(about.get("optimizer"), args.max_grad_norm, "max_grad_norm")

        def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            recorder.step(about["model"], state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            bank.close()

    return BankCallback()


def lightning_callback(bank: SampleBank, *, burn_in: int = 0) -> Any:
    """Return a Lightning `Callback` that adds a draw to a bank after each step of the optimizer.

    ``Trainer(gradient_clip_val=...)`` clips gradients: the callback warns.

    Args:
        bank: keeps every `thin`-th draw; it is closed when the training ends.
        burn_in: number of optimizer steps before the first draw.

    Raises:
        ImportError: Lightning is not installed (``pip install langevin[lightning]``).
    """
    base: Any = import_extra("lightning_callback()", "lightning.pytorch", "lightning").Callback
    recorder = _Recorder("lightning_callback", bank, burn_in)

    class BankCallback(base):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            recorder.last = trainer.global_step
            (optimizer, *_) = trainer.optimizers
            recorder.start(optimizer, trainer.gradient_clip_val, "gradient_clip_val")

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
            recorder.step(pl_module, trainer.global_step)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            bank.close()

    return BankCallback()
