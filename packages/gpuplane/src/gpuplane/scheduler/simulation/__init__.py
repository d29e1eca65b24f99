"""The scheduler and the extender as placers of the packing experiment: a cluster's decisions without a cluster."""
