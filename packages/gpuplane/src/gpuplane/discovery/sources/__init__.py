"""Reads the features of a machine from its /proc, /sys, /etc and /boot: one module for each domain.

Everything is read below a host root, nothing is asked of the running kernel, so that any directory can be a
machine. A file that is absent or has no answer (many in sysfs, with EIO and the like) leaves its feature out, and is
never an error: a machine without USB is a machine. Files of users (feature files, rules) are checked: a file with a
mistake is left out whole, and the log names it.
"""

from gpuplane.discovery.sources.custom import CustomRules, load_rules
from gpuplane.discovery.sources.local import LocalFeatures, read_local
from gpuplane.discovery.sources.machine import observe

__all__ = ["CustomRules", "LocalFeatures", "load_rules", "observe", "read_local"]
