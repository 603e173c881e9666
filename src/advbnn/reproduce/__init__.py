"""Every table and figure of the paper, made again: trained, measured, drawn, and judged claim by claim."""

from advbnn.reproduce.claims import Claim, judged
from advbnn.reproduce.evidence import Evidence
from advbnn.reproduce.experiment import EXPERIMENTS, Experiment
from advbnn.reproduce.reproduction import Reproduction
from advbnn.reproduce.write import write_all

__all__ = ["EXPERIMENTS", "Claim", "Evidence", "Experiment", "Reproduction", "judged", "write_all"]
