"""The paper's experiments: plans trainings and measurements, carries them out, and checks the paper's claims.

`make_plan` says what an experiment needs, `Reproduction` carries it out, `Evidence.read` collects the records,
`check_claims` gives the verdicts, and `write_all` writes tables, figures and the report.
"""

from advbnn.paper.claims import Claim, check_claims
from advbnn.paper.evidence import Evidence
from advbnn.paper.experiment import EXPERIMENTS, Experiment
from advbnn.paper.plan import Plan, make_plan
from advbnn.paper.reproduction import Reproduction
from advbnn.paper.write import write_all

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Evidence",
    "Experiment",
    "Plan",
    "Reproduction",
    "check_claims",
    "make_plan",
    "write_all",
]
