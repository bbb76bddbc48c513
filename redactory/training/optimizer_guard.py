"""Verifies, step by step, that a custom loop changes weights only by the step's gradient."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.training.clipping.distributed import checksum_bits
from redactory.training.clipping.layer_rules import read_generator_states
from redactory.training.steps import list_trainable_parameters


class OptimizerGuard:
    """Hooks on parameters and optimizers, and checksums between them, that detect forbidden weight changes.

    After its first refusal it refuses everything: restart the loop from its checkpoint.

    Formal guarantees: none of its own. In a guarded step it raises ``CheckFailed`` unless the gradient was set once, by
    a computation that drew no torch random number and changed no weight or buffer; no other backward pass reached a
    parameter; each optimizer stepped at most once, and at least one did, along exactly that gradient; and nothing else
    changed a weight or a buffer since the end of the previous step. It also raises in any step if optimizers hold other
    parameters than the trained ones; between two steps if one steps; and at the end if frozen weights changed. Weights
    are compared by sums of their bits, which detect accidents but possibly not forgeries.
    """

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []
        self._network: nn.Module = nn.Module()
        self._trainable_ids: set[int] = set()
        self._hooks: list[Any] = []
        self._refusal: str | None = None
        self._step_number: int | None = None
        """The current step; None between steps."""
        self._is_guarded, self._is_computing = True, False
        self._checksums: dict[int, int] | None = None
        """The gradient that optimizers may use: a checksum per parameter, by its ``id``."""
        self._stepped: set[int] = set()
        self._recorded_state: tuple[int, ...] = ()
        self._generator_states: list[Tensor] = []
        self.frozen_sha256 = ""

    def refuse_training(self, problem: str) -> NoReturn:
        """Raise ``CheckFailed``, now and at every later call."""
        self._refusal = self._refusal or problem
        location = "outside every step" if self._step_number is None else f"in step {self._step_number}"
        raise CheckFailed(f"{location}: {problem}; fix this and restart the loop from its last checkpoint")

    def _require_not_refused(self) -> None:
        if self._refusal is not None:
            raise CheckFailed(f"this loop was already refused: {self._refusal}")

    def attach(self, network: nn.Module, optimizers: Iterable[Optimizer]) -> None:
        """Register hooks on ``network`` and ``optimizers``; accelerate's wrappers are unwrapped."""
        self._network = network
        for optimizer in optimizers:
            inner: Any = optimizer
            while hasattr(inner, "optimizer"):
                inner = inner.optimizer
            if not isinstance(inner, Optimizer):
                raise ConfigurationError(f"expected a torch.optim.Optimizer, got {type(inner).__name__}")
            self.optimizers.append(inner)
        self._trainable_ids = {id(parameter) for parameter in list_trainable_parameters(network)}
        if problem := self._find_parameter_problem():
            raise ConfigurationError(problem)
        self.frozen_sha256 = hash_frozen_state(network)
        for parameter in list_trainable_parameters(network):
            hooked: Any = parameter
            self._hooks.append(hooked.register_post_accumulate_grad_hook(self._refuse_other_backward))
        for optimizer in self.optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(self._check_before_step))
            self._hooks.append(optimizer.register_step_post_hook(self._record_after_step))

    def detach(self) -> None:
        """Remove the hooks."""
        while self._hooks:
            self._hooks.pop().remove()

    def _find_parameter_problem(self) -> str | None:
        """Return why optimizers and network do not match, or None."""
        moved_ids = {
            id(p) for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]
        }
        if {id(parameter) for parameter in list_trainable_parameters(self._network)} != self._trainable_ids:
            return "the network trains other parameters than at the start of the loop"
        if moved_ids - self._trainable_ids:
            return "an optimizer has parameters that are not trained here, so not clipped: remove them"
        if self._trainable_ids - moved_ids:
            return "some of the trained parameters are in no optimizer"
        return None

    def record_state(self) -> None:
        """Record the current weights and buffers, which may change only by a step."""
        self._recorded_state = self._checksum_state()

    def _checksum_state(self) -> tuple[int, ...]:
        state = (*list_trainable_parameters(self._network), *self._network.buffers())
        return tuple(int(checksum_bits(tensor)) for tensor in state)

    def _require_unchanged_state(self, moment: str) -> None:
        if problem := self._find_parameter_problem():
            self.refuse_training(problem)
        if self._checksum_state() != self._recorded_state:
            self.refuse_training(f"weights or buffers changed {moment}")

    def open_step(self, number: int, is_guarded: bool) -> None:
        """Begin step ``number``; unless ``is_guarded`` only its end is checked."""
        self._step_number, self._is_guarded = number, is_guarded
        self._checksums, self._stepped = None, set()

    def close_step(self) -> bool:
        """End the current step and check it; False if there is none."""
        self._require_not_refused()
        if self._step_number is None:
            self._require_unchanged_state("between two steps")
            return False
        if self._is_guarded:
            if self._checksums is None:
                self.refuse_training("it was skipped: call backward() for each step")
            if not self._stepped:
                self.refuse_training("no optimizer used its gradient: step once for each backward()")
            self._require_unchanged_state("after its optimizer's step")
        self._step_number, self._checksums = None, None
        return True

    def require_frozen_unchanged(self) -> None:
        """Check, after the last step, that frozen weights did not change."""
        if hash_frozen_state(self._network) != self.frozen_sha256:
            self.refuse_training("frozen weights changed")

    def compute_gradient(self, number: int, compute: Callable[[], None], by_autograd: bool) -> None:
        """Run ``compute``, which must set step ``number``'s gradient and change nothing else."""
        self._require_not_refused()
        if number != self._step_number:
            self.refuse_training(f"backward() of step {number}, which is already over")
        if self._checksums is not None:
            self.refuse_training("its gradient was already computed: call backward() once per step")
        if not self._is_guarded:
            self.record_state()
        if not by_autograd and any(p._backward_hooks for p in list_trainable_parameters(self._network)):
            self.refuse_training("a hook on a parameter would see private gradients: remove it (wandb.watch)")
        self._require_unchanged_state("before its gradient was computed")
        if self._is_guarded and any(_checksum_gradients(list_trainable_parameters(self._network)).values()):
            self.refuse_training("gradients are already present: call optimizer.zero_grad() after each step")
        self._generator_states, self._is_computing = read_generator_states(), by_autograd
        try:
            with torch.enable_grad():
                compute()
        except BaseException as error:
            self._refusal = self._refusal or f"step {number} ended with {type(error).__name__}"
            raise
        finally:
            self._is_computing = False
        if by_autograd:
            self.require_no_side_effects()
        self._checksums = _checksum_gradients(list_trainable_parameters(self._network))

    def require_no_side_effects(self) -> None:
        """Check that computing the gradient changed nothing else; to be called before noise is drawn."""
        if not all(map(torch.equal, self._generator_states, read_generator_states())):
            self.refuse_training("the network or its loss draws random numbers (dropout?)")
        self._require_unchanged_state("while its gradient was computed")

    def _refuse_other_backward(self, _: Tensor) -> None:
        if self._is_computing or (self._step_number is not None and not self._is_guarded):
            return
        self._require_not_refused()
        self.refuse_training(
            "another backward pass reached the parameters: the gradient must come from the step's backward()"
        )

    def _check_before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._require_not_refused()
        if self._step_number is None:
            self.refuse_training("an optimizer stepped, but the ledger has no such step")
        if not self._is_guarded:
            return
        if self._checksums is None:
            self.refuse_training("an optimizer stepped before the step's noisy gradient was computed")
        if id(optimizer) in self._stepped:
            self.refuse_training("an optimizer stepped twice")
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            self.refuse_training("an optimizer was given a closure, which computes separate gradients")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(self._checksums.get(key) != value for key, value in _checksum_gradients(parameters).items()):
            self.refuse_training(
                "the gradient is not the one from backward(): do not clip, scale or add to it "
                "(max_grad_norm 0, no gradient scaler)"
            )
        self._require_unchanged_state("between its gradient and its optimizer's step")

    def _record_after_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._stepped.add(id(optimizer))
        self._recorded_state = self._checksum_state()


def _checksum_gradients(parameters: Iterable[nn.Parameter]) -> dict[int, int]:
    """Return the checksum of each parameter's gradient, 0 without one, by the parameter's ``id``."""
    return {id(p): 0 if p.grad is None else int(checksum_bits(p.grad)) for p in parameters}


def hash_frozen_state(network: nn.Module) -> str:
    """Hash (sha256) the parameters and buffers of ``network`` that are not trained, by name."""
    digest = hashlib.sha256()
    frozen = ((name, p) for name, p in network.named_parameters() if not p.requires_grad)
    for name, value in (*frozen, *network.named_buffers()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
