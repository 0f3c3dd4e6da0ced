"""From pictures, videos and cameras to labels on disk: one input after the other, in bounded memory."""

from segtailor.predicting.batch import Event, Failure, Progress, Result, Settings, predict_all
from segtailor.predicting.inputs import Input, expand
from segtailor.predicting.labelling import NETWORK_PIXELS, Labelled, Predictor, described, label
from segtailor.predicting.names import destinations
from segtailor.predicting.painting import Form, Look, paint, png

__all__ = [
    "NETWORK_PIXELS",
    "Event",
    "Failure",
    "Form",
    "Input",
    "Labelled",
    "Look",
    "Predictor",
    "Progress",
    "Result",
    "Settings",
    "described",
    "destinations",
    "expand",
    "label",
    "paint",
    "png",
    "predict_all",
]
