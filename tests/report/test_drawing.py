import xml.etree.ElementTree as ET

import pytest

from segtailor.report.drawing import arrange, draw_plan
from segtailor.spaces import architectures, baselines, networks

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", architectures() + baselines())
def test_every_published_network_can_be_drawn(name: str) -> None:
    plan = networks.expand(name, image=(512, 1024))
    root = ET.fromstring(draw_plan(plan, title=name))
    hints = [element.text or "" for element in root.iter(f"{SVG}title")]
    assert len(hints) == len(plan.nodes) + 1  # every node, and the image
    assert len(list(root.iter(f"{SVG}path"))) == sum(len(node.inputs) for node in plan.nodes)


@pytest.mark.parametrize(
    "name", ["fasterseg-student", "autortnet-a", "squeezenas-mac-xlarge", "lpsnet-step14"]
)
def test_no_two_nodes_share_a_place_and_time_runs_to_the_right(name: str) -> None:
    plan = networks.expand(name, image=(512, 1024))
    places = arrange(plan)
    assert len({(place.column, place.band, place.lane) for place in places.values()}) == len(places)
    for node in plan.nodes:
        assert all(places[source].column < places[node.name].column for source in node.inputs)


def test_a_title_with_markup_is_escaped() -> None:
    text = draw_plan(networks.expand("lpsnet-step0", image=(64, 64)), title="<script>&")
    assert "<script>" not in text
    ET.fromstring(text)
