import pytest

from segtailor.core.errors import InvalidArchitecture
from segtailor.core.plan import Node, Plan, PlanBuilder, Shape, count, receptive_field
from segtailor.ops import Conv, PooledConv, Sum

IMAGE = Shape(3, 32, 64)


def small_plan(**settings: object) -> Plan:
    build = PlanBuilder(IMAGE)
    one = build.add("one", Conv(), "image", channels=8, stride=2)
    two = build.add("two", Conv(), one)
    unread = build.add("unread", Conv(kernel=1), one, channels=4)
    aux = build.add("aux_head", Conv(kernel=1), one, channels=5)
    head = build.add("head", Conv(kernel=1), two, channels=5)
    return build.plan(outputs={"main": head, "aux": aux}, align_corners=True, dormant=[unread])


def test_select_drops_what_an_output_does_not_need_and_keeps_dormant_nodes() -> None:
    names = [node.name for node in small_plan().select(("main",)).nodes]
    assert names == ["one", "two", "unread", "head"]


def test_deployed_drops_dormant_nodes_too() -> None:
    plan = small_plan()
    assert [node.name for node in plan.deployed().nodes] == ["one", "two", "head"]
    assert [call.channels for call in plan.calls] == [8, 8, 5]


def test_count_separates_inference_and_training() -> None:
    plan = small_plan()
    main = plan.select(("main",))
    assert count(plan) == (main.macs(), main.params(), plan.train_params())
    assert plan.train_params() - main.train_params() == 8 * 5 + 2 * 5


def test_an_unknown_output_is_named() -> None:
    with pytest.raises(InvalidArchitecture, match="no output 'depth'; it has main, aux"):
        small_plan().select(("depth",))


def test_a_node_that_reads_the_future_is_refused() -> None:
    late = Node(name="late", op=Conv(), inputs=("later",), channels=3)
    with pytest.raises(InvalidArchitecture, match="'late' reads 'later'"):
        Plan(image=IMAGE, nodes=(late,), outputs={"main": "late"})


def test_two_nodes_of_one_name_are_refused() -> None:
    node = Node(name="same", op=Conv(), inputs=("image",), channels=3)
    with pytest.raises(InvalidArchitecture, match="two nodes are called 'same'"):
        Plan(image=IMAGE, nodes=(node, node), outputs={"main": "same"})


def test_a_missing_output_node_is_refused() -> None:
    with pytest.raises(InvalidArchitecture, match="'gone'"):
        Plan(image=IMAGE, nodes=(), outputs={"main": "gone"})


def test_operators_can_be_replaced_one_by_one() -> None:
    wider = small_plan().with_operators(lambda call: Conv(kernel=5) if call.op == Conv() else call.op)
    assert wider.by_name["one"].op == Conv(kernel=5)
    assert wider.by_name["head"].op == Conv(kernel=1)


def test_receptive_field_of_a_stack_of_convolutions() -> None:
    assert receptive_field(small_plan()) == 3 + 2 * 2


def test_global_pooling_sees_everything() -> None:
    build = PlanBuilder(IMAGE)
    pooled = build.add("pooled", PooledConv(), "image", channels=3)
    total = build.add("total", Sum(), "image", pooled)
    plan = build.plan(outputs={"main": total}, align_corners=False)
    assert receptive_field(plan) == float("inf")


def test_output_stride_is_an_integer_where_it_divides() -> None:
    assert small_plan().output_stride == 2
    assert isinstance(small_plan().output_stride, int)
