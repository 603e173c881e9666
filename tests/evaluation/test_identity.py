import copy
import hashlib

import pytest
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


def test_a_copy_is_the_same_model_in_any_mode() -> None:
    model = small()
    assert digest(copy.deepcopy(model)) == digest(model) == digest(copy.deepcopy(model).eval())


def test_every_change_makes_another_model() -> None:
    weights, statistics, wider = small(), small(), small()
    with torch.no_grad():
        weights[3].bias[7] += 1e-6
    statistics[1].running_mean[0] = 1
    wider[1].eps = 1e-3
    models = [
        small(),
        weights,
        statistics,
        wider,
        small().double(),
        add_noise(small()),
        add_noise(small(), first=0.3),
        bayesianize(small()),
        bayesianize(small(), init_std=0.1),
        bayesianize(small(), prior=GaussianPrior(std=1.0)),
    ]
    assert len({digest(model) for model in models}) == len(models)


def test_buffers_that_are_not_saved_belong_to_the_model() -> None:
    def scaled(factor: float) -> nn.Module:
        model = small()
        model[0].register_buffer("scale", torch.tensor(factor), persistent=False)
        return model

    assert digest(scaled(1.0)) == digest(scaled(1.0))
    assert len({digest(scaled(1.0)), digest(scaled(2.0)), digest(small())}) == 3


class Tempered(nn.Module):
    """Divides its logits by a number that is neither a parameter nor a buffer."""

    def __init__(self, temperature: object) -> None:
        super().__init__()
        self.net, self.temperature = small(), temperature


def test_plain_attributes_belong_to_the_model() -> None:
    values = (1.0, 2.0, 1 + 1e-15, True, "1.0", (1.0, 2.0), (1.0, (2.0, 3.0)), [1.0, 2.0], torch.float16, torch.float32)
    assert digest(Tempered(2.0)) == digest(Tempered(2.0)) == digest(Tempered(2.0).eval())
    assert len({digest(nn.Sequential(Tempered(value))) for value in values}) == len(values)


def test_attributes_of_a_layer_that_does_not_print_them_belong_to_the_model() -> None:
    one, two = nn.MultiheadAttention(4, 1), nn.MultiheadAttention(4, 2)
    two.load_state_dict(one.state_dict())
    assert digest(one) != digest(two)


def test_models_that_keep_everything_in_their_state_dict_keep_their_identity() -> None:
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    text = b"Linear(in_features=1, out_features=1, bias=True) "
    tensors = b"weight torch.float32 (1, 1)" + bytes(4) + b"bias torch.float32 (1,)" + bytes(4)
    assert digest(model) == hashlib.sha256(text + f"{noise_levels(model)}".encode() + tensors).hexdigest()


def test_a_network_frozen_to_a_draw_is_another_one() -> None:
    model = nn.Sequential(bayesianize(small()))
    bank = SampleBank(small())
    bank.add()
    next(bank.net.parameters()).data.add_(1)
    bank.add()
    found = [digest(model), digest(bank)]
    for seed in (0, 1):
        with model[0].frozen(seed):
            found.append(digest(model))
        with bank.frozen(weights=bank.sample(seed)):
            found.append(digest(bank))
    assert len(set(found)) == 6
    assert [digest(model), digest(bank)] == found[:2]


def test_kind_and_label() -> None:
    assert ModelIdentity.of(bayesianize(small())).label == "Bayesian(Sequential)"
    identity = ModelIdentity.of(small(), "ours")
    assert (identity.label, identity.kind) == ("ours", "Sequential")


def test_data_is_the_whole_set_and_the_rows_of_it() -> None:
    test = data.load("digits").test
    assert DataIdentity.of(test) == DataIdentity(name="digits", sha256=test.fingerprint(), n=500, rows="")
    part = DataIdentity.of(test, [0, 1, 2, 7, 9, 10])
    assert (part.n, part.rows, part.sha256) == (6, "0-2,7,9-10", test.fingerprint())
    with pytest.raises(ValueError, match="indices must lie in 0..499"):
        DataIdentity.of(test, [500])


def test_ranges_keep_the_order() -> None:
    assert ranges([]) == ""
    assert ranges([5]) == "5"
    assert ranges([3, 4, 5, 4, 3]) == "3-5,4,3"


def test_precision_names_type_and_autocast() -> None:
    cpu = torch.device("cpu")
    assert precision_of(small(), cpu) == "float32"
    assert precision_of(small().double(), cpu) == "float64"
    assert precision_of(nn.Flatten(), cpu) == "float32"
    with torch.autocast("cpu", torch.bfloat16):
        assert precision_of(small(), cpu) == "float32, autocast bfloat16"
    assert precision_of(small(), cpu, bf16=True) == "float32, autocast bfloat16"
    on_gpu = precision_of(small(), torch.device("cuda"))
    assert "TF32" in on_gpu


def test_versions_name_software_and_device() -> None:
    versions = versions_on(torch.device("cpu"))
    assert versions["torch"] == torch.__version__
    assert set(versions) == {"advbnn", "torch", "python", "device"}
