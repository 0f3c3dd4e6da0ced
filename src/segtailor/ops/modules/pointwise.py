"""Modules of norms and activations that stand alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import nn

from segtailor.ops.modules.conv import activation

if TYPE_CHECKING:
    from segtailor.core.plan import OpCall
    from segtailor.ops.conv import Activation
    from segtailor.ops.pointwise import Norm


def alone(kind: Activation) -> nn.Module:
    """Build an activation; none at all is the identity."""
    return activation(kind) or nn.Identity()


def normed(op: Norm, call: OpCall) -> nn.Sequential:
    """Build the module of a `Norm` call."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["norm"] = nn.BatchNorm2d(call.source.channels)
    act = activation(op.activation)
    if act is not None:
        layers["act"] = act
    return nn.Sequential(layers)
