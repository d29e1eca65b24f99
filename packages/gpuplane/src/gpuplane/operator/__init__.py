"""ClusterPolicy in, prepared nodes out: the stage table, the decisions for a node, and the operator's process."""
