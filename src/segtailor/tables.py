"""Everything that has a name: one table per registry, with the place each thing is imported from when it is needed.

`segtailor/__init__.py` fills the registries with them. A name here is what files, flags and users write.
"""

from __future__ import annotations

from segtailor.core import registry

OPERATORS = {
    "conv": "segtailor.ops.convolutions:Conv",
    "inverted_residual": "segtailor.ops.blocks:InvertedBottleneck",
    "sum": "segtailor.ops.combining:Sum",
    "concat": "segtailor.ops.combining:Concat",
    "identity": "segtailor.ops.combining:Identity",
    "zero": "segtailor.ops.combining:Zero",
    "max_pool": "segtailor.ops.pooling:MaxPool",
    "pooled_conv": "segtailor.ops.pooling:PooledConv",
    "factorised_reduction": "segtailor.ops.convolutions:FactorisedReduction",
    "rep_conv": "segtailor.ops.blocks:RepConv",
    "resize": "segtailor.ops.combining:Resize",
    "scale_image": "segtailor.ops.combining:ScaleImage",
    "separable": "segtailor.ops.convolutions:Separable",
    "timm_features": "segtailor.ops.timm_encoder:TimmFeatures",
    "timm_tap": "segtailor.ops.timm_encoder:TimmTap",
    "residual": "segtailor.ops.blocks:Residual",
    "bottleneck": "segtailor.ops.blocks:Bottleneck",
    "ghost": "segtailor.ops.blocks:Ghost",
    "shuffle": "segtailor.ops.blocks:Shuffle",
    "activate": "segtailor.ops.convolutions:Activate",
    "norm": "segtailor.ops.convolutions:Norm",
    "average_pool": "segtailor.ops.pooling:AveragePool",
    "bin_pool": "segtailor.ops.pooling:BinPool",
    "gate": "segtailor.ops.attention:Gate",
    "blend": "segtailor.ops.attention:Blend",
    "squeeze_excite": "segtailor.ops.attention:SqueezeExcite",
    "likeness": "segtailor.ops.attention:Likeness",
    "window_pool": "segtailor.ops.pooling:WindowPool",
    "global_mean": "segtailor.ops.pooling:GlobalMean",
    "hidden_classifier": "segtailor.ops.convolutions:HiddenClassifier",
    "unread_attention": "segtailor.ops.attention:UnreadAttention",
    "zoomed_conv": "segtailor.ops.convolutions:ZoomedConv",
}
SPACES = {
    "decoder_cell": "segtailor.spaces.decoder_cell.space:DecoderCell",
    "dilated_residual": "segtailor.spaces.dilated_residual.space:DilatedResidual",
    "elastic": "segtailor.spaces.elastic.space:Elastic",
    "hyper_cell": "segtailor.spaces.hyper_cell.space:HyperCell",
    "inverted_residual": "segtailor.spaces.inverted_residual.space:InvertedResidual",
    "multi_resolution": "segtailor.spaces.multi_resolution.space:MultiResolution",
    "scalable_path": "segtailor.spaces.scalable_path.space:ScalablePath",
}
FIXED = {  # families of hand-made networks
    "handmade": "segtailor.spaces.handmade.space:Handmade",
}
STRATEGIES = {
    "controller": "segtailor.strategies.controller:Controller",
    "evolution": "segtailor.strategies.evolution:Evolution",
    "expansion": "segtailor.strategies.expansion:Expansion",
    "random": "segtailor.strategies.random:RandomSearch",
    "gradient": "segtailor.strategies.gradient_settings:Gradient",
    "one_shot": "segtailor.strategies.one_shot:OneShot",
}
EXECUTORS = {
    "serial": "segtailor.strategies.executors:Serial",
    "processes": "segtailor.strategies.executors:Processes",
    "ray": "segtailor.strategies.executors:Ray",
}
DATASETS = {
    "cityscapes": "segtailor.data.cityscapes:Cityscapes",
    "cityscapes-coarse": "segtailor.data.cityscapes:CityscapesCoarse",
    "bdd100k": "segtailor.data.cityscapes:Bdd100k",
    "camvid": "segtailor.data.camvid:CamVid",
    "coco": "segtailor.data.annotations.coco:Coco",
    "cvat": "segtailor.data.annotations.cvat:Cvat",
    "labelme": "segtailor.data.annotations.labelme:Labelme",
    "labelstudio": "segtailor.data.annotations.label_studio:LabelStudio",
    "yolo": "segtailor.data.annotations.yolo:Yolo",
    "folder-depth": "segtailor.data.depth_folder:DepthFolder",
    "folder": "segtailor.data.folder:Folder",
    "nyudv2": "segtailor.data.nyud:Nyudv2",
    "mpii": "segtailor.data.mpii:MpiiCrops",
    "coco-keypoints": "segtailor.data.coco_keypoints:CocoCrops",
    "synthetic-pose": "segtailor.data.people:people_from_options",
    "voc": "segtailor.data.voc:Voc",
    "synthetic": "segtailor.data.synthetic:from_options",
    "synthetic-depth": "segtailor.data.synthetic:depth_from_options",
}
TASK_KINDS = {
    "segmentation": "segtailor.tasks.segmentation.kind:SEGMENTATION",
    "depth": "segtailor.tasks.depth:DEPTH",
    "pose": "segtailor.tasks.pose.kind:POSE",
}
RUNTIMES = {
    "eager": "segtailor.targets.eager:Eager",
    "compiled": "segtailor.targets.eager:TorchCompile",
    "graph": "segtailor.targets.graph:CudaGraph",
    "onnxruntime": "segtailor.targets.onnx:OnnxRuntime",
    "openvino": "segtailor.targets.openvino:OpenVino",
    "ncnn": "segtailor.targets.mobile:NcnnRuntime",
    "litert": "segtailor.targets.mobile:LiteRtRuntime",
    "executorch": "segtailor.targets.mobile:ExecuTorchRuntime",
    "tensorrt": "segtailor.targets.tensorrt:TensorRt",
}
OBJECTIVES = {
    "within": "segtailor.core.cost:Within",
    "linear": "segtailor.core.cost:Linear",
    "power": "segtailor.core.cost:Power",
}
COSTS = {
    "macs": "segtailor.costs.analytic:Macs",
    "params": "segtailor.costs.analytic:Params",
    "memory": "segtailor.costs.analytic:ActivationMemory",
    "pack": "segtailor.costs.latency:PackLatency",
    "measured": "segtailor.costs.latency:TargetLatency",
    "fitted": "segtailor.costs.fitted:FittedLatency",
}
EVALUATORS = {
    "train": "segtailor.strategies.evaluators.train:TrainEvaluator",
    "staged": "segtailor.strategies.evaluators.staged:StagedEvaluator",
    "shared": "segtailor.strategies.evaluators.shared:SharedEvaluator",
}
RECIPES = {
    "train": "segtailor.recipes.train:TrainRecipe",
    "train_stages": "segtailor.recipes.train:StagedTrainRecipe",
    "search": "segtailor.recipes.search:SearchRecipe",
    "calibrate": "segtailor.recipes.calibrate:CalibrateRecipe",
    "tailor": "segtailor.tailoring.recipe:TailorRecipe",
}
SYSTEMS = {
    "auxcells": "segtailor.systems.auxcells:SYSTEM",
    "dilated": "segtailor.systems.dilated:SYSTEM",
    "elastic": "segtailor.systems.elastic:SYSTEM",
    "squeezenas": "segtailor.systems.squeezenas:SYSTEM",
    "autortnet": "segtailor.systems.autortnet:SYSTEM",
    "fasterseg": "segtailor.systems.fasterseg:SYSTEM",
    "lpsnet": "segtailor.systems.lpsnet:SYSTEM",
}
TRAININGS = {
    "fasterseg": "segtailor.systems.fasterseg:TRAINING",
    "autortnet": "segtailor.systems.autortnet:TRAINING",
    "auxcells": "segtailor.systems.auxcells:TRAINING",
    "auxcells-depth": "segtailor.systems.auxcells:DEPTH_TRAINING",
    "auxcells-pose": "segtailor.systems.auxcells:POSE_TRAINING",
    "squeezenas": "segtailor.systems.squeezenas:TRAINING",
    "lpsnet": "segtailor.systems.lpsnet:TRAINING",
}


def fill() -> None:
    """Put every table into its registry."""
    registry.OPERATORS.fill(OPERATORS)
    registry.SPACES.fill(SPACES)
    registry.FIXED.fill(FIXED)
    registry.STRATEGIES.fill(STRATEGIES)
    registry.EXECUTORS.fill(EXECUTORS)
    registry.DATASETS.fill(DATASETS)
    registry.TASK_KINDS.fill(TASK_KINDS)
    registry.RUNTIMES.fill(RUNTIMES)
    registry.OBJECTIVES.fill(OBJECTIVES)
    registry.COSTS.fill(COSTS)
    registry.EVALUATORS.fill(EVALUATORS)
    registry.RECIPES.fill(RECIPES)
    registry.SYSTEMS.fill(SYSTEMS)
    registry.TRAININGS.fill(TRAININGS)
