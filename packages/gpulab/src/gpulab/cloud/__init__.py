"""The simulated cloud of `gpuplane up --cloud`: EC2's endpoint on moto, whose instances are simulated machines."""
