"""Static int8 quantisation of an exported fp32 ONNX model, by ONNX Runtime's quantiser or by NNCF; both write ONNX."""

from __future__ import annotations

import logging
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from typing import Any, Literal, TypeAlias, get_args

from segtailor.core.errors import Unsupported, unknown
from segtailor.deploy.calibration_images import Feeds
from segtailor.nets.onnx.int8 import int8_onnx, read_fp32, with_metadata_of

Method: TypeAlias = Literal["onnxruntime", "nncf"]


def quantise_onnx(data: bytes, feeds: Feeds, *, method: str = "onnxruntime", what: str) -> bytes:
    """Return the int8 form of a serialised fp32 model, its ranges measured on `feeds`."""
    check_method(method)
    if method == "nncf":
        return _by_nncf(data, feeds, what=what)
    return int8_onnx(data, feeds, what=what)


def check_method(method: str) -> None:
    """Refuse an unknown method, or one whose package is missing."""
    if method not in get_args(Method):
        raise unknown("way to quantise", method, get_args(Method))
    if method == "nncf" and find_spec("nncf") is None:
        raise Unsupported(
            "quantising by NNCF needs the package nncf, which is not installed: `pip install nncf`, "
            "or use the method onnxruntime."
        )


def _by_nncf(data: bytes, feeds: Feeds, *, what: str) -> bytes:
    """Quantise with NNCF's preset for speed; it also corrects the bias that rounding adds to each layer."""
    import nncf

    source = read_fp32(data, what=what)
    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):  # its progress bars would end up in JSON output
        quantised: Any = nncf.quantize(
            source,
            nncf.Dataset(feeds),
            subset_size=len(feeds),
            preset=nncf.QuantizationPreset.PERFORMANCE,
        )
    return with_metadata_of(quantised, source)
