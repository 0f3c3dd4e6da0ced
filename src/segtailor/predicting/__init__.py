"""Label pictures, videos and cameras and write the results, one input after the other, in bounded memory."""

from segtailor.predicting.batch import Event, Failure, Progress, Result, Settings, predict_all
from segtailor.predicting.inputs import Input, destinations, expand
from segtailor.predicting.labelling import NETWORK_PIXELS, Labelled, Predictor, described, label, paint, png
from segtailor.tasks import Form, Look

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
