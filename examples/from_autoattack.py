"""An audit where you would call AutoAttack: your model and tensors, a worst case with its interval, and all points."""

import os
import tempfile
from pathlib import Path

import torch

import advbnn
from advbnn.evaluation.points import Points

SHORT = bool(os.environ.get("ADVBNN_EXAMPLE"))

# your model, and tensors x in [0, 1] and y
data = advbnn.data.load("digits")
net = advbnn.models.build("mlp", classes=10, image_size=8, channels=1)
how = advbnn.defense("adv", "digits", schedule={"epochs": 1 if SHORT else 10})
model = advbnn.fit(net, data, how, seed=0).model
n = 10 if SHORT else 200
x, y = data.test.images[:n] / 255, data.test.labels[:n]

# adversary = AutoAttack(model, norm="Linf", eps=0.1, version="standard")
# x_adv = adversary.run_standard_evaluation(x, y)
images = advbnn.data.from_tensors(x, y, classes=10, name="mine")
file = Path(tempfile.mkdtemp()) / "points.safetensors"
level = "quick" if SHORT else "standard"  # standard corresponds to version="standard", for random networks too
found = advbnn.audit(model, images, advbnn.Threat("linf", 0.1), level, save_points=file)
print(found)

x_adv = Points.load(file).sets["worst"]
print("largest change:", (x_adv - x).abs().max().item())
with torch.no_grad():
    print("accuracy on them:", (model.eval()(x_adv).argmax(1) == y).float().mean().item())
