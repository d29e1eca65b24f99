"""The dashboard: one page that lists every GPU, the pods that wait, and the nodes that need a person; read-only.

Facts and words are those of `gpuplane status` and `gpuplane explain`. The page gets one snapshot and then merge patches
by server-sent events.
"""
