"""The names of a network's tensors."""

import torch
from torch import nn

from advbnn.bayes.functional import module_tree, parameter_paths
from advbnn.bayes.mean_field import bayesianize
from zoo import Tied


def test_a_tied_weight_has_several_paths_and_all_of_them_are_replaced() -> None:
    net, seen = Tied(), []
    assert parameter_paths(net)["embed.weight"] == ("embed.weight", "head.weight")
    net.head.register_forward_hook(lambda module, *_: seen.append((module.weight, net.embed.weight)))
    weights = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    assert not bayesianize(net).run(weights, torch.zeros(1, 2, dtype=torch.long)).any()
    assert seen[0][0] is seen[0][1] is weights["embed.weight"]
    assert net.head.weight is net.embed.weight is not weights["embed.weight"]


def test_a_tree_holds_the_tensors_under_their_names() -> None:
    tensors = {"a.b.weight": nn.Parameter(torch.ones(2)), "a.mean": torch.zeros(1), "top": torch.ones(3)}
    tree = module_tree(tensors.items())
    assert dict(tree.named_parameters()) == {"a.b.weight": tensors["a.b.weight"]}
    assert dict(tree.named_buffers()) == {"top": tensors["top"], "a.mean": tensors["a.mean"]}
