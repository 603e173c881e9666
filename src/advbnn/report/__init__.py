"""Records as something to look at."""

from advbnn.report.pictures import Answer, AttackedImage, attacked_images
from advbnn.report.report import write_report

__all__ = ["Answer", "AttackedImage", "attacked_images", "write_report"]
