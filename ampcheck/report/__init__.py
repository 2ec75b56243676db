"""The static site, the badge and the job summary, made from run files."""

from ampcheck.report.outputs import schema
from ampcheck.report.site import build

__all__ = ["build", "schema"]
