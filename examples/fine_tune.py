"""A pretrained checkpoint becomes the mean of a Bayesian network, and is fine-tuned against adversarial examples."""

import os
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file

import advbnn

SHORT = bool(os.environ.get("ADVBNN_EXAMPLE"))
ROWS = range(100 if SHORT else 500)  # the test images that are used


def build():
    return advbnn.models.build("mlp", classes=10, image_size=8, channels=1)


# the checkpoint from elsewhere
data = advbnn.data.load("digits")
file = Path(tempfile.mkdtemp()) / "weights.safetensors"
plain = advbnn.defense("none", "digits", schedule={"epochs": 1 if SHORT else 10})
save_file(advbnn.fit(build(), data, plain, seed=0).model.state_dict(), file)

net = build()
net.load_state_dict(load_file(file))
before = advbnn.evaluate(net, data.test, rows=ROWS, seeds=1, label="checkpoint")

# a small initial std keeps what the checkpoint knows
bnn = advbnn.bayesianize(net, prior=advbnn.GaussianPrior(std=0.15), init_std=0.01)
how = advbnn.defense(
    "adv_bnn", "digits", schedule={"epochs": 1 if SHORT else 10}, attack={"threat": {"eps": 0.1}, "steps": 5}
)
tuned = advbnn.fit(bnn, data, how, seed=0).model

attack = {"clean": None, "PGD-20": advbnn.attacks.PGD(advbnn.Threat("linf", 0.1), steps=20, eot=5)}
print(before + advbnn.evaluate(tuned, data.test, attack, rows=ROWS, seeds=1, label="fine-tuned"))
