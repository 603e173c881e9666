"""The defences that this library began with, described as the published ones, and the baselines without randomness."""

from dataclasses import replace

from advbnn.attacks import paper_pgd
from advbnn.defenses.published import EVERY_PASS, NEVER, PGD_20, AuthorsProtocol, Claim, Published

ADV_BNN = Published(
    name="adv_bnn",
    title="Adv-BNN",
    paper="Liu et al., Adv-BNN: Improved Adversarial Defense through Robust Bayesian Neural Network",
    venue="ICLR 2019",
    code="https://github.com/xuanqing94/BayesianDefense",
    random="all weights, from a factorized Gaussian posterior",
    redrawn=EVERY_PASS,
    protocol=AuthorsProtocol(paper_pgd(0.035), passes=20),
    claims=(Claim("PGD-20", 45.4, 79.7, "VGG16", "table 1 of the paper, radius 0.035", eps=0.035),),
    samples=20,
    baseline="adv_adam",
    differences=("ResNet-18 here; scales of BatchNorm start at 1, in the source uniform in (0, 1)",),
    recipe="configs/cifar10-resnet18-adv_bnn.toml",
)

RSE = Published(
    name="rse",
    title="Random self-ensemble",
    paper="Liu et al., Towards Robust Neural Networks via Random Self-ensemble",
    venue="ECCV 2018",
    code="https://github.com/xuanqing94/RobustNet",
    random="Gaussian noise before every convolution",
    redrawn=EVERY_PASS,
    shared=False,
    protocol=AuthorsProtocol(paper_pgd(8 / 255), passes=50),
    claims=(
        Claim("C&W up to a distortion", 86.0, None, "VGG16", "abstract of the paper", norm="l2", eps=None),
        Claim("C&W, c = 0.1", 61.9, 88.6, "VGG16", "file accuracy/cw_cifar10_vgg16_rse.acc", norm="l2", eps=None),
        Claim("C&W, c = 0.4", 5.9, 88.6, "VGG16", "file accuracy/cw_cifar10_vgg16_rse.acc", norm="l2", eps=None),
    ),
    samples=20,
    differences=(
        "trained against PGD here, by the recipe of all; the source trains on clean images",
        "the source attacks with C&W; PGD and its 50 passes are from a later repository of its authors",
        "the noise of 0.2 and 0.1 is that repository's; that of the claims is not recorded, a script has 0.4 and 0.1",
        "the classifier averages 20 passes here",
    ),
    recipe="configs/cifar10-resnet18-rse.toml",
)

MODES = Published(
    name="modes",
    title="Three modes",
    paper="This library: an ensemble of three adversarially trained networks",
    random="nothing: the exact mean over three modes of the posterior",
    redrawn=NEVER,
    protocol=AuthorsProtocol(replace(PGD_20, eot=3), NEVER, passes=3),
    samples=3,
    recipe="configs/cifar10-resnet18-modes3.toml",
    baseline="adv_long",
    differences=("the baseline is one network of the same training cost, 45 epochs",),
)


ADV = Published(
    name="adv",
    title="Adversarial training",
    paper="Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks",
    venue="ICLR 2018",
    random="nothing",
    redrawn=NEVER,
    protocol=AuthorsProtocol(PGD_20, NEVER),
    recipe="configs/cifar10-resnet18-adv.toml",
    baseline="",
)

ADV_ADAM = replace(
    ADV,
    name="adv_adam",
    title="Adversarial training with Adam",
    recipe="configs/cifar10-resnet18-adv_adam.toml",
)

ADV_BATCH = replace(
    ADV,
    name="adv_batch",
    title="Adversarial training, batch statistics",
    recipe="configs/cifar10-resnet18-adv_batch.toml",
    attack_mode="train",
)

ADV_LONG = replace(
    ADV,
    name="adv_long",
    title="Adversarial training, three times as long",
    recipe="configs/cifar10-resnet18-adv_long.toml",
)

NONE = replace(
    ADV,
    name="none",
    title="No defence",
    paper="none: plain training",
    venue="",
    trained=False,
    recipe="configs/cifar10-resnet18-none.toml",
)
