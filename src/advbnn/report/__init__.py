"""Records as reports: HTML, markdown and CSV, with all tables and plots. Measures nothing.

`write_report(records, out)` writes a report; `attacked_images` makes the single images that it can show.
"""

from advbnn.report.images import AttackedImage, ImagePrediction, attacked_images
from advbnn.report.render import write_report

__all__ = ["AttackedImage", "ImagePrediction", "attacked_images", "write_report"]
