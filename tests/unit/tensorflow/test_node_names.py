"""Names of nodes and calls, in graphs that are only named."""

from types import SimpleNamespace

import pytest

from aiacc.tensorflow import node_names


class _Graph:
    def __init__(self, name):
        self.name = name


class ControlFlowFuncGraph(_Graph):  # the names of TensorFlow's classes
    def __init__(self, name, outer_graph):
        super().__init__(name)
        self.outer_graph = outer_graph


class WhileBodyFuncGraph(ControlFlowFuncGraph):
    pass


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        (_Graph("train_step"), "train_step.allreduce"),
        (_Graph("cond_true_1234"), "cond_true.allreduce"),
        (_Graph("cond_true_12_grad_34"), "cond_true_grad.allreduce"),
        (_Graph("<lambda>"), "lambda.allreduce"),
        (_Graph("__inner"), "inner.allreduce"),
        (_Graph(""), "allreduce"),
        (object(), "allreduce"),
    ],
)
def test_nodes_are_called_after_their_function(graph, name):
    assert node_names.label(graph, "allreduce") == name


def test_unnamed_nodes_are_numbered_in_their_place():
    step = _Graph("step_12")
    body = WhileBodyFuncGraph("while_body_3", step)
    names = [node_names.of_node(graph, "allreduce") for graph in (step, body, step, body)]
    assert names == [
        "allreduce.node.step.1",
        "allreduce.node.step/while_body.1",
        "allreduce.node.step.2",
        "allreduce.node.step/while_body.2",
    ]
    assert node_names.of_node(_Graph(""), "allgather") == "allgather.node.1"


def test_names_in_a_process_set_do_not_depend_on_others():
    step, both = _Graph("step"), [_Graph("leaf_1"), _Graph("leaf_2")]
    for process_set, leaf in enumerate(both, start=1):
        assert node_names.of_node(step, "allreduce", process_set) == "allreduce.node.step.1"
        for graph in (step, leaf):
            assert node_names.of_given(graph, "allreduce", "loss", process_set) == "allreduce.loss"
        assert node_names.of_call(step, leaf) == "aiacc_call.0.1.step.leaf.1/"


def test_loops_are_counted():
    step = _Graph("step")
    body = WhileBodyFuncGraph("while_body", step)
    branch = ControlFlowFuncGraph("cond_true", body)
    inner = WhileBodyFuncGraph("while_body", branch)
    counts = [node_names.loops_around(graph) for graph in (step, body, branch, inner)]
    assert counts == [0, 1, 1, 2]
    step._control_flow_context = SimpleNamespace(outer_context=None, IsWhileContext=lambda: True)
    assert node_names.loops_around(inner) == 3


def test_a_call_is_numbered_among_those_of_functions_with_collectives():
    step, leaf, other, plain = _Graph("step"), _Graph("leaf_4"), _Graph("leaf_7"), _Graph("plain")
    body = WhileBodyFuncGraph("while_body_3", step)
    node_names.of_node(leaf, "allreduce")
    node_names.of_node(WhileBodyFuncGraph("while_body", other), "allreduce")
    assert node_names.of_call(step, plain) is None
    calls = [(step, leaf), (step, plain), (body, leaf), (step, other)]
    assert [node_names.of_call(graph, function) for graph, function in calls] == [
        "aiacc_call.0.0.step.leaf.1/",
        None,
        "aiacc_call.1.0.step.while_body.leaf.1/",
        "aiacc_call.0.0.step.leaf.2/",
    ]
    # Now the caller has collectives.
    assert node_names.of_call(_Graph("main"), step) == "aiacc_call.0.0.main.step.1/"


def test_names_that_a_function_gives_differ_from_those_of_its_caller_but_not_in_branches():
    step, leaf = _Graph("step"), _Graph("leaf")
    assert node_names.of_given(leaf, "allreduce", "loss") == "allreduce.loss"
    assert node_names.of_given(leaf, "allreduce", "loss") == "allreduce.loss.1"
    assert node_names.of_given(step, "allreduce", "loss") == "allreduce.loss"
    # With .1 the first would be the second of the function, with .1.1 the second is new.
    scopes = [node_names.of_call(step, leaf) for _ in range(2)]
    assert [scope.split(".")[2] for scope in scopes] == ["1", "2"]
    assert node_names.of_given(step, "allreduce", "loss.1") == "allreduce.loss.1.3"
    assert node_names.of_given(step, "broadcast", "loss") == "broadcast.loss"
    step, leaf = _Graph("step"), _Graph("leaf")
    branches = [ControlFlowFuncGraph(name, step) for name in ("cond_true", "cond_false")]
    node_names.of_given(leaf, "allreduce", "loss")
    scopes = [node_names.of_call(branch, leaf) for branch in branches]
    assert [scope.split(".")[2] for scope in scopes] == ["0", "0"]
    assert node_names.of_call(step, leaf).split(".")[2] == "1"
