"""Every table and figure of the paper, made again: trained, measured, drawn, and judged claim by claim."""

from advbnn.paper.claims import Claim, judged
from advbnn.paper.evidence import Evidence
from advbnn.paper.experiment import EXPERIMENTS, Experiment
from advbnn.paper.reproduction import Reproduction
from advbnn.paper.write import write_all

__all__ = ["EXPERIMENTS", "Claim", "Evidence", "Experiment", "Reproduction", "judged", "write_all"]
