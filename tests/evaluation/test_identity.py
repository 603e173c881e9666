import copy
import hashlib
from dataclasses import make_dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from advbnn import GaussianPrior, add_noise, bayesianize, data
from advbnn.bayes.sample_bank import SampleBank
from advbnn.defenses.rse import noise_levels
from advbnn.evaluation.identity import DataIdentity, ModelIdentity, precision_of, ranges, versions_on


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))


def digest(model: nn.Module) -> str:
    return ModelIdentity.of(model).sha256


class Tempered(nn.Module):
    """Divides its logits by a number that is neither a parameter nor a buffer."""

    def __init__(self, temperature: object) -> None:
        super().__init__()
        self.net, self.temperature = small(), temperature


def test_a_copy_is_the_same_model_in_any_mode() -> None:
    for model in (small(), Tempered(2.0)):
        assert digest(copy.deepcopy(model)) == digest(model) == digest(copy.deepcopy(model).eval())


def test_every_change_makes_another_model() -> None:
    def unsaved(factor: float) -> nn.Module:
        model = small()
        model[0].register_buffer("scale", torch.tensor(factor), persistent=False)
        return model

    weights, statistics, wider = small(), small(), small()
    with torch.no_grad():
        weights[3].bias[7] += 1e-6
    statistics[1].running_mean[0] = 1
    wider[1].eps = 1e-3
    changed = [weights, statistics, wider, small().double(), unsaved(1.0), unsaved(2.0)]
    noisy = [add_noise(small()), add_noise(small(), first=0.3)]
    priors = [bayesianize(small(), **given) for given in ({}, {"init_std": 0.1}, {"prior": GaussianPrior(std=1.0)})]
    models = [small(), *changed, *noisy, *priors]
    temperatures = (1.0, 2.0, 1 + 1e-15, True, "1.0", (1.0, 2.0), (1.0, (2.0, 3.0)), [1.0, 2.0], torch.float16)
    models += [nn.Sequential(Tempered(value)) for value in temperatures]
    assert len({digest(model) for model in models}) == len(models)


def test_parts_in_training_mode_hooks_and_further_attributes_belong_to_the_model() -> None:
    part, hooked, other = (small().eval() for _ in range(3))
    part[1].train()
    hooked[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    other[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 3,))
    values = (np.zeros(2), np.ones(2), {"scale": 1.0}, {"scale": 2.0}, nn.functional.relu, nn.functional.gelu)
    lambdas = (lambda x: x + 1, lambda x: x + 2)
    models = [small(), part, hooked, other, *(Tempered(value) for value in (*values, *lambdas))]
    assert len({digest(model) for model in models}) == len(models)
    assert digest(part.train()) == digest(small())  # evaluated in evaluation mode, as a whole


def test_what_functions_hold_belongs_to_the_model() -> None:
    def closed(noise: float) -> nn.Module:
        model = small()
        model.register_forward_pre_hook(lambda module, inputs: (inputs[0] + noise,))
        return model

    def default(x: torch.Tensor, noise: float = 0.1) -> torch.Tensor:
        return x + noise

    nested = [{"noise": {"sigma": sigma}, "mask": None} for sigma in (0.1, 0.2)]
    values = (*nested, [0.1, None], {0.1})
    functions = (default, partial(default, noise=0.2), partial(default, noise=0.3), lambda x, noise=0.2: x + noise)

    def hooked(noise: float) -> nn.Module:
        model = small()
        model.register_forward_hook(partial(lambda module, inputs, outputs, noise: outputs + noise, noise=noise))
        return model

    slots = make_dataclass("Slots", [("sigma", float)], slots=True)
    values = (*values, slots(0.1), slots(0.2))
    models = [closed(0.1), closed(0.2), hooked(0.1), hooked(0.2), *(Tempered(value) for value in (*values, *functions))]
    assert len({digest(model) for model in models}) == len(models)
    assert digest(closed(0.1)) == digest(closed(0.1))
    without_module = small()
    without_module.register_forward_hook([].append)
    assert digest(without_module) != digest(small())
    kept = Tempered({})
    before = digest(kept)
    kept.temperature["activations"] = torch.rand(3)  # which a pass may leave there
    assert digest(kept) == before


def test_attributes_of_a_layer_that_does_not_print_them_belong_to_the_model() -> None:
    one, two = nn.MultiheadAttention(4, 1), nn.MultiheadAttention(4, 2)
    two.load_state_dict(one.state_dict())
    assert digest(one) != digest(two)


def test_the_digest_is_over_structure_and_tensors() -> None:
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    text = b"Linear(in_features=1, out_features=1, bias=True) "
    tensors = b"weight torch.float32 (1, 1)" + bytes(4) + b"bias torch.float32 (1,)" + bytes(4)
    assert digest(model) == hashlib.sha256(text + f"{noise_levels(model)}".encode() + tensors).hexdigest()


def test_a_network_frozen_to_a_weight_sample_is_another_one() -> None:
    model, bank = nn.Sequential(bayesianize(small())), SampleBank(small())
    other = small()
    nn.init.ones_(next(other.parameters()))
    bank.add(small()), bank.add(other)
    found = [digest(model), digest(bank)]
    for seed in (0, 1):
        with model[0].frozen(seed), bank.frozen(weights=bank.sample(seed)):
            found += [digest(model), digest(bank)]
    assert len(set(found)) == 6
    assert [digest(model), digest(bank)] == found[:2]


def test_data_is_the_whole_set_and_the_rows_of_it() -> None:
    test = data.load("digits").test
    assert DataIdentity.of(test) == DataIdentity(name="digits", sha256=test.fingerprint(), n=500, rows="")
    part = DataIdentity.of(test, [0, 1, 2, 7, 9, 10])
    assert (part.n, part.rows, part.sha256) == (6, "0-2,7,9-10", test.fingerprint())
    assert [ranges(rows) for rows in ([], [5], [3, 4, 5, 4, 3])] == ["", "5", "3-5,4,3"]


def test_precision_names_dtype_autocast_and_tf32() -> None:
    model, cpu = small().double(), torch.device("cpu")
    assert precision_of(model, cpu) == "float64"
    assert precision_of(model, cpu, bf16=True) == "float64, autocast bfloat16"
    with torch.autocast("cpu", torch.bfloat16):
        assert precision_of(model, cpu) == "float64, autocast bfloat16"
    assert "TF32" in precision_of(model, torch.device("cuda"))


def test_what_decides_the_last_digits_on_a_cpu_is_recorded() -> None:
    versions = versions_on(torch.device("cpu"))
    assert versions["threads"] == str(torch.get_num_threads())
    assert versions["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
