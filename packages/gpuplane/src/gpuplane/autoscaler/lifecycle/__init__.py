"""The life of a claim until its node is initialised: launch, registration, initialisation. The end is `termination`."""
