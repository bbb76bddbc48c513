"""A device that is not the processor, on a machine that has none: torch's ``meta`` with true values inside.

Whoever moves a tensor to ``ELSEWHERE`` gets one that has that device's name and refuses to meet a tensor of
the processor, as a graphics card's would; what it computes is computed on the processor, so values can be
compared.  It shows that code names its devices; of a graphics card's arithmetic it shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ELSEWHERE = torch.device("meta")
_CROSSING = (torch.ops.aten._to_copy, torch.ops.aten.copy_)
"""What may touch both sides."""


class MixedDevices(AssertionError):
    """An operation met tensors of both devices."""


class Elsewhere(torch.Tensor):
    """A tensor on that device, around its value."""

    value: torch.Tensor

    @staticmethod
    def __new__(cls, value: torch.Tensor) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=ELSEWHERE,
        )
        made.value = value
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.value.data_ptr()

    def untyped_storage(self) -> Any:
        return self.value.untyped_storage()

    def tolist(self) -> Any:
        return self.value.tolist()


class _Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


@contextmanager
def another_device() -> Iterator[None]:
    """Tensors can be made on and moved to ``ELSEWHERE`` inside."""
    real = torch.tensor

    def tensor(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        # the real one makes its tensor where no operation is watched
        made = real(*args, **kwargs)
        return made if device is None else made.to(device)

    with pytest.MonkeyPatch.context() as patch, _Watching():
        patch.setattr(torch, "tensor", tensor)
        yield


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    there = {id(leaf.value): leaf for leaf in given if isinstance(leaf, Elsewhere)}
    here = [leaf for leaf in given if not isinstance(leaf, Elsewhere) and leaf.dim()]
    if there and here and func.overloadpacket not in _CROSSING:
        raise MixedDevices(f"{func} met tensors of both devices")
    asked = kwargs.get("device")
    goes = bool(there) if asked is None else torch.device(asked) == ELSEWHERE
    if func.overloadpacket is torch.ops.aten.copy_:
        goes = isinstance(args[0], Elsewhere)
    plain = {**kwargs, **({} if asked is None else {"device": torch.device("cpu")})}
    found = func(*tree_map(_value, args), **tree_map(_value, plain))
    return tree_map(lambda leaf: _placed(leaf, there) if goes else leaf, found)


def _value(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Elsewhere) else leaf


def _placed(leaf: Any, known: dict[int, Elsewhere]) -> Any:
    """A result that is an argument, changed in its place, is that argument again."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return known[id(leaf)] if id(leaf) in known else Elsewhere(leaf)
