"""`gpuplane doctor`: observes the installation with one pass of lists, decides with pure checks, prints.

`facts.py` has what is observed, `reading.py` observes, `checks/` decide, `command.py` prints. `redaction.py` and
`bundle.py` make the file for support.
"""
