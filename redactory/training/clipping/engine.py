"""Clip each example's gradient and sum over a batch or a step; refuse unsupported networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.distributed import is_distributed, sum_over_ranks, unwrap_network
from redactory.training.clipping.gradients import (
    GramCache,
    InseparableExamplesError,
    Tape,
    compute_dense_squared_norms,
    compute_squared_norms,
    use_tape,
)
from redactory.training.clipping.layer_rules import RecordingRule, find_rule, record_opaque_module, use_forward
from redactory.training.clipping.layers import Lstm
from redactory.training.clipping.matmul import disable_autocast, force_single_precision, refuse_autocast
from redactory.training.data import Batch, IntArray, TokenizedExamples, split_micro_batches
from redactory.training.mechanisms.mechanism import MAX_CLIP_NORM, require_valid_clip_norm

NamedParameters = dict[str, nn.Parameter]


def require_supported_network(network: nn.Module) -> None:
    """Raise ``ConfigurationError`` naming the module that prevents exact per-example clipping.

    Refused before anything runs: batch normalisation, running statistics, embeddings with ``max_norm`` or
    ``scale_grad_by_freq``, parameters that belong to no layer, and distinct parameters that share memory. Refused while
    running: a hidden state passed to an LSTM, a layer whose input does not begin with the batch dimension, a parameter
    used outside its layer, and, on the first batch of two or more examples, a loss whose gradient passes through
    another example's row.

    A network can also mix examples without a gradient, such as by centring or weighting with detached numbers of the
    batch. :func:`check_batch_independence` finds this by comparing a batch with its halves; training calls it at the
    first step and every 1,000th. ``compute_clipped_gradient`` and ``clipped_backward`` do not call it.

    Not detected: mixing that occurs only in some batches or is smaller than rounding, state that a module carries
    between batches in an attribute, and random draws that depend on the data.
    """
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm):
            raise ConfigurationError(f"{name}: batch normalisation mixes examples; use LayerNorm")
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise ConfigurationError(f"{name}: running statistics carry information from example to example")
        if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
            raise ConfigurationError(f"{name}: max_norm and scale_grad_by_freq mix the examples of a batch")
    trainable = get_trainable_parameters(network)
    dtypes = {p.dtype for p in trainable.values()}
    if not (dtypes <= {torch.float32} or dtypes <= {torch.float64}):
        raise ConfigurationError("the trained parameters must all be float32, or all float64")
    name_by_storage: dict[int, str] = {}
    for name, parameter in trainable.items():
        if hasattr(parameter, "device_mesh"):
            raise ConfigurationError(
                f"{name}: its parts are on several processes (FSDP2, tensor parallel), so none of them can "
                "clip: use DistributedDataParallel, and train adapters if the whole does not fit"
            )
        if "." not in name:
            raise ConfigurationError(f"{name}: is a parameter of the network itself; move it into a layer")
        other_name = (
            name_by_storage.setdefault(parameter.untyped_storage().data_ptr(), name) if parameter.numel() else name
        )
        if other_name != name:
            raise ConfigurationError(f"{name} and {other_name} share memory but are two parameters")


def get_trainable_parameters(network: nn.Module) -> NamedParameters:
    """Return the trainable parameters by name, in order; a shared one appears once."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def split_by_parameter(parameters: Collection[nn.Parameter], flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each parameter with its part of ``flat``, which holds values of all in order, in its shape."""
    shares = torch.split(flat, [parameter.numel() for parameter in parameters])
    for parameter, share in zip(parameters, shares, strict=True):
        yield parameter, share.view_as(parameter)


class RecordingSite(NamedTuple):
    """A module recorded by ``rule``; None means that the module reports by itself."""

    name: str
    module: nn.Module
    rule: RecordingRule | None


RECORD_AS_ONE = "clipped_as_one"
"""Marks a module to be recorded as a whole, by running it again on each example."""


def find_recording_sites(module: nn.Module, name: str = "") -> Iterator[RecordingSite]:
    """Yield the modules at and below ``module`` that directly hold trainable parameters, outermost first."""
    for child_name, child in module.named_children():
        full = f"{name}.{child_name}".lstrip(".")
        if getattr(child, RECORD_AS_ONE, False) and any(p.requires_grad for p in child.parameters()):
            yield RecordingSite(full, child, record_opaque_module)
        elif any(parameter.requires_grad for parameter in child.parameters(recurse=False)):
            rule = None if isinstance(child, Lstm) else find_rule(child) or record_opaque_module
            yield RecordingSite(full, child, rule)
        else:
            yield from find_recording_sites(child, full)


@contextmanager
def record_layers(recording_sites: list[RecordingSite], tape: Tape) -> Iterator[None]:
    """Make the modules report to ``tape`` during a forward pass."""
    with ExitStack() as replacements, use_tape(tape):
        for site in recording_sites:
            if site.rule is not None:
                forward = site.rule(site.module, site.name, tape)
                replacements.enter_context(use_forward(site.module, forward))
        yield


# One physical batch: clip every example's gradient and sum, with one forward and one backward pass.


MAX_CANCELLATION = {torch.float32: 16.0, torch.float64: 1e4}
"""Largest cancellation in a squared norm: keeps its relative error near 10⁻⁶ (float32) and 10⁻¹² (float64)."""
_PROBED_LAYERS: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ClippedGradient:
    """Σ_i g_i · min(1, C/‖g_i‖) as ``flat`` [P], the ``norms`` ‖g_i‖ [B], and ``finite`` [B]: which examples count.

    ``norms`` and ``finite`` depend on single examples, so they must not reach anything that is released.
    """

    flat: Tensor
    norms: Tensor
    finite: Tensor


def compute_clipped_gradient(
    network: nn.Module, losses: Callable[[], Tensor], clip_norm: float, batch_size: int | None = None
) -> ClippedGradient:
    """Return the sum of the clipped gradients of one batch.

    ``losses`` runs the network and returns the loss of each example, [B]. ``clip_norm`` is C. ``batch_size`` is B;
    layers that merge examples and positions (mixtures of experts, OPT) need it. ``flat`` holds the trainable
    ``named_parameters`` in order, a shared one once.

    Book-keeping: the layers keep their inputs and output gradients of one backward pass. These give the norms, and then
    the sum with one weighted product per layer. Blocks may be checkpointed (``torch.utils.checkpoint``, non-reentrant).

    Under ``torch.autocast`` the passes use its type, and the norms and the sum use the type of the parameters. Each
    term stays within C, but the rounding of a pass then reveals which other examples are present, so no ε follows
    (``docs/guarantees.md``, "Floating point"). For a ``DistributedDataParallel``, ``flat`` is the sum over all
    processes, with the same bits in each; all processes must call this function.

    Raises ``ConfigurationError`` for a network whose examples cannot be separated, and for a C below 10⁻⁶ or above 10⁶.

    Formal guarantees: each term of ``flat`` has norm at most C in exact arithmetic and is a function of the parameters,
    the example and its own random numbers. An example contributes zero if its gradient or squared norm is not finite,
    if its norm underflows to 0, or if its norm is so large that the weight C/‖g‖ would underflow.
    """
    with unwrap_network(network) as inner_network:
        clipped = _clip_local_batch(inner_network, losses, clip_norm, batch_size)
    if isinstance(network, DistributedDataParallel):
        summed = sum_over_ranks(clipped.flat, get_trainable_parameters(network).values(), network.process_group)
        clipped = replace(clipped, flat=summed)
    return clipped


def _clip_local_batch(
    network: nn.Module, losses: Callable[[], Tensor], clip_norm: float, batch_size: int | None
) -> ClippedGradient:
    require_valid_clip_norm(clip_norm)
    require_supported_network(network)
    trainable, recording_sites = get_trainable_parameters(network), list(find_recording_sites(network))
    holder_counts = Counter(id(p) for m in network.modules() for p in m._parameters.values() if p is not None)
    shared = frozenset(key for key, count in holder_counts.items() if count > 1)
    tape = Tape({id(p): name for name, p in trainable.items()}, shared, batch_size)
    with record_layers(recording_sites, tape):  # includes the backward pass: a checkpointed block runs again in it
        loss_values = losses()
        if loss_values.dim() != 1:
            raise ConfigurationError("the losses of a batch must have one dimension, the examples")
        if len(loss_values) and loss_values.requires_grad:  # otherwise the tape stays empty, and all gradients are 0
            names = tuple(site.name for site in recording_sites)
            with disable_autocast(loss_values.device.type):
                if len(loss_values) > 1 and _PROBED_LAYERS.get(network) != names:
                    _check_loss_separation(tape, loss_values, trainable)
                    _PROBED_LAYERS[network] = names
                _run_backward(tape, loss_values, torch.ones_like(loss_values), trainable)
    with disable_autocast(loss_values.device.type), force_single_precision():
        return _clip_and_sum(tape, trainable, len(loss_values), clip_norm)


def _run_backward(
    tape: Tape, loss_values: Tensor, loss_weights: Tensor, trainable: NamedParameters, retain_graph: bool = False
) -> None:
    """Run the backward pass of Σ_i loss_weights_i · loss_values_i; refuse gradients that bypass a layer."""
    try:
        gradients = torch.autograd.grad(
            loss_values, list(trainable.values()), loss_weights, retain_graph=retain_graph, allow_unused=True
        )
    except RuntimeError as error:
        if "use_reentrant=True" not in str(error):
            raise
        raise ConfigurationError(
            "a block is checkpointed with use_reentrant=True, which hides its backward pass: set use_reentrant=False"
        ) from None
    for name, gradient in zip(trainable, gradients, strict=True):
        if gradient is not None:
            raise InseparableExamplesError(name, "used outside its layer, where examples cannot be separated")
    tape.check_example_counts(len(loss_values))


def _check_loss_separation(tape: Tape, loss_values: Tensor, trainable: NamedParameters) -> None:
    """Check that the losses of the first half of the examples give no gradient in the rows of the others.

    Runs once per network, on its first batch of two or more examples. Rows that are not finite are skipped.
    """
    half_weights = torch.zeros_like(loss_values)
    half_weights[: len(loss_values) // 2] = 1.0
    tape.probing = True
    _run_backward(tape, loss_values, half_weights, trainable, retain_graph=True)
    for key, uses in tape.uses.items():
        squared = compute_squared_norms(uses, {})[0][len(loss_values) // 2 :]
        if bool((squared.isfinite() & (squared != 0.0)).any()):
            raise InseparableExamplesError(tape.names[key], "one example's loss depends on another's row")
    tape.uses.clear()
    tape.probing = False


@torch.no_grad()
def _clip_and_sum(tape: Tape, trainable: NamedParameters, batch_size: int, clip_norm: float) -> ClippedGradient:
    reference = next(iter(trainable.values()))
    squared = _compute_squared_norms(tape, reference, batch_size)
    norms = squared.clamp(min=0.0).sqrt()
    weights = (clip_norm / norms).clamp(max=1.0)
    # a subnormal weight lost most of its bits and would not clip
    finite = squared.isfinite() & (weights >= torch.finfo(reference.dtype).tiny)
    weights = weights.masked_fill((norms == 0.0) | ~finite, 0.0)
    if not bool(finite.all()):
        tape.uses = {key: [use.zero_examples(~finite) for use in uses] for key, uses in tape.uses.items()}
    return ClippedGradient(_sum_weighted_gradients(tape, trainable, weights.to(reference.dtype)), norms, finite)


def _compute_squared_norms(tape: Tape, reference: Tensor, batch_size: int) -> Tensor:
    """Return ‖g_i‖² of every example, [B] float64; form the gradients if the terms of the Gram matrices cancel."""
    grams: GramCache = {}
    squared = torch.zeros(batch_size, dtype=torch.float64, device=reference.device)
    diagonal_sum = torch.zeros_like(squared)
    for uses in tape.uses.values():
        total, diagonal = compute_squared_norms(uses, grams)
        squared += total
        diagonal_sum += diagonal
    is_imprecise = (squared * MAX_CANCELLATION[reference.dtype] < diagonal_sum) & diagonal_sum.isfinite()
    rows = is_imprecise.nonzero().flatten().tolist()
    if rows:
        formed = [compute_dense_squared_norms(uses, rows) for uses in tape.uses.values()]
        squared[is_imprecise] = torch.stack(formed).sum(0)
    return squared


def _sum_weighted_gradients(tape: Tape, trainable: NamedParameters, weights: Tensor) -> Tensor:
    """Return Σ_i weights_i g_i, flat in the order of ``trainable``; this empties the tape."""
    reference = next(iter(trainable.values()))
    flat = reference.new_empty(sum(p.numel() for p in trainable.values()), requires_grad=False)
    for parameter, total in split_by_parameter(trainable.values(), flat):
        uses = tape.uses.pop(id(parameter), [])
        if not uses:
            total.zero_()
        for index in range(len(uses)):
            # free each as soon as it is added
            uses.pop(0).add_weighted_sum(total, weights, is_empty=index == 0)
    return flat


# The sum of a step: the clipped gradients of the sampled examples, in batches that fit in memory.


MAX_GRADIENT_DIFFERENCE = 1e-3
"""Largest difference of two gradients of one example due to rounding, relative to the largest norm in the batch."""


def _sum_micro_batch(network: Any, batch: Batch, clip_norm: float) -> Tensor:
    """Sum the clipped gradients of a micro-batch; C is ``clip_norm``.

    If an example in a padded row has no finite gradient, it is run again without padding. So positions that exist only
    because another example is longer do not decide whether it counts.
    """
    clipped = _clip_batch(network, batch, clip_norm)
    flat = clipped.flat
    for index in (~clipped.finite & ~batch.real.all(1)).nonzero().flatten().tolist():
        flat += _clip_batch(network, batch.select_example(index), clip_norm).flat
    return flat


def _clip_batch(network: Any, batch: Batch, clip_norm: float) -> ClippedGradient:
    # in half precision one example would change the rounding of all by more than the noise covers
    with disable_autocast(batch.inputs.device.type), refuse_autocast():
        return compute_clipped_gradient(network, lambda: network.example_losses(batch), clip_norm, len(batch.inputs))


def compute_clipped_sum(
    network: Any, examples: TokenizedExamples, rows: IntArray, clip_norm: float, max_tokens: int
) -> Tensor:
    """Return Σ_i g_i · min(1, C/‖g_i‖) over the examples ``rows``, flat in the order of the trainable parameters.

    An example's loss is the sum over its tokens, so g_i is the gradient of its −log probability. C is ``clip_norm``. An
    example whose gradient is not finite contributes zero; no rows give zero. ``max_tokens`` bounds the memory and
    changes the result only by rounding. Autocast is disabled.

    Formal guarantees: exchanging one example changes the sum by at most 2C, removing one by at most C, in exact
    arithmetic (``docs/guarantees.md``, "Substitution").
    """
    require_valid_clip_norm(clip_norm)  # even if no example was sampled
    total = torch.cat([torch.zeros_like(p.detach()).flatten() for p in get_trainable_parameters(network).values()])
    for micro_batch in split_micro_batches(rows, examples.lengths, max_tokens):
        total += _sum_micro_batch(network, examples.make_batch(micro_batch).to(network.device), clip_norm)
    return total


def check_batch_independence(network: Any, examples: TokenizedExamples, rows: IntArray, max_tokens: int) -> bool:
    """Raise ``ConfigurationError`` if a batch of ``rows`` has different gradients than its two halves.

    A network that centres its activations over the batch, or weights its losses by a statistic of the batch, gives an
    example a different gradient among different examples, even if no gradient passes through the statistic. Then one
    example moves all others. The check compares the norms of all examples and their sum, in single precision, on one
    micro-batch of at most ``max_tokens`` tokens. It returns False if that has fewer than two examples, so nothing was
    checked.

    Not detected: effects below :data:`MAX_GRADIENT_DIFFERENCE`, only in other batches, or between batches.
    """
    micro_batch = max(split_micro_batches(rows, examples.lengths, max_tokens), key=len, default=rows)
    if len(micro_batch) < 2:
        return False
    half = len(micro_batch) // 2
    whole, *halves = (
        _clip_batch(network, examples.make_batch(part).to(network.device), MAX_CLIP_NORM)
        for part in (micro_batch, micro_batch[:half], micro_batch[half:])
    )
    norms, finite = (torch.cat([getattr(part, name) for part in halves]) for name in ("norms", "finite"))
    is_finite = whole.finite & finite
    largest = float(norms[is_finite].max()) if bool(is_finite.any()) else 0.0
    differences = [float((whole.norms - norms)[is_finite].abs().max())] if bool(is_finite.any()) else []
    if bool(is_finite.all()):
        differences.append(float((whole.flat - sum(part.flat for part in halves)).norm()) / len(micro_batch))
    # an almost vanished gradient is only rounding
    if any(difference > MAX_GRADIENT_DIFFERENCE * largest + 1e-5 for difference in differences):
        raise ConfigurationError(
            "the gradient of an example changes with the other examples in its batch, so that one could "
            "affect all: nothing may be centred, normalised or weighted over a batch"
        )
    return True


# Opacus' sampling, noise and accountant with these sums.


def clipped_backward(optimizer: Any, network: nn.Module, losses: Callable[[], Tensor]) -> Tensor:
    """Set Σ_i g_i · min(1, C/‖g_i‖) as the gradient for ``optimizer``, in place of ``loss.backward()``.

    ``optimizer`` is Opacus' ``DPOptimizerFastGradientClipping`` over exactly the trainable parameters of ``network``,
    which must not be wrapped in a ``GradSampleModule``. C is its ``max_grad_norm``. ``losses`` runs the network and
    returns the loss of each example, [B]; this function returns the same, detached. Call it once for each physical
    batch of a ``BatchMemoryManager``. ``optimizer.step()`` then adds Opacus' noise, divides by its
    ``expected_batch_size`` and calls its accountant's hook.

    Under ``torch.distributed``, wrap the network in a ``DistributedDataParallel`` of torch or Opacus and use Opacus'
    distributed optimizer. It adds up the gradients of the processes, and adds noise once.

    Raises ``ConfigurationError`` for another optimizer or wrapper, for other parameters, for a bound below 10⁻⁶ or
    above 10⁶, and for a network whose examples one pass shows to be inseparable. It also raises if the sum of the last
    step is still set (``optimizer.zero_grad()`` is missing), because that sum would be released twice.

    Formal guarantees: adding or removing one example changes the gradient set on the parameters by at most C, in exact
    arithmetic. An example whose gradient is not finite adds zero. Everything after that is Opacus'.
    """
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
    from opacus.optimizers import DistributedDPOptimizerFastGradientClipping, DPOptimizerFastGradientClipping

    if not isinstance(optimizer, DPOptimizerFastGradientClipping):
        raise ConfigurationError(
            f"{type(optimizer).__name__} clips by itself, or does not clip: use Opacus' "
            "DPOptimizerFastGradientClipping, which adds noise to already clipped sums"
        )
    if not isinstance(optimizer.max_grad_norm, int | float):
        raise ConfigurationError("max_grad_norm must be one number: the bound of an example's whole gradient")
    if not optimizer._is_last_step_skipped and any(p.summed_grad is not None for p in optimizer.params):
        raise ConfigurationError(
            "the sum of the last step is still present: call optimizer.zero_grad() before each step"
        )
    wrappers = (DistributedDataParallel, DifferentiallyPrivateDistributedDataParallel)
    if is_distributed() and not (
        isinstance(network, wrappers) and isinstance(optimizer, DistributedDPOptimizerFastGradientClipping)
    ):
        raise ConfigurationError(
            "with several processes the networks would diverge: wrap the network in DistributedDataParallel "
            "and use Opacus' DistributedDPOptimizerFastGradientClipping"
        )
    parameters = list(get_trainable_parameters(network).values())
    if {id(p) for p in optimizer.params} != {id(p) for p in parameters}:
        raise ConfigurationError(
            "the optimizer's parameters are not those that the network trains: create it from [p for p in "
            "network.parameters() if p.requires_grad]"
        )
    recorded_losses: list[Tensor] = []

    def record_losses() -> Tensor:
        recorded_losses.append(losses())
        return recorded_losses[0]

    with unwrap_network(network) as inner_network:
        flat_sum = _clip_local_batch(inner_network, record_losses, float(optimizer.max_grad_norm), None).flat
    for parameter, gradient in split_by_parameter(parameters, flat_sum):
        parameter.grad = gradient
    return recorded_losses[0].detach()
