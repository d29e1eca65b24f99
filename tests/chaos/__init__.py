"""Chaos: an embedded cluster with gpuplane, whose processes, API server, disk and clock fail while tenants come and go.

`make chaos` runs it for MINUTES from a random seed, which it prints; `SEED=` repeats the choices of a run.

    __main__.py    the run: rounds of faults, each ended by calm, and the summary
    world.py       the cluster, its processes and its disk, and how they fail
    process.py     a process of that cluster, with a clock and an API server that the run controls
    api_faults.py  the faults of the API server, as an ASGI application around the real one
    tenants.py     pods that come and go
    observing.py   the state of a cluster, read from the API server, the kubelets and the nodes' files
    check.py       violations of what gpuplane promises, as a pure function of that state
"""
