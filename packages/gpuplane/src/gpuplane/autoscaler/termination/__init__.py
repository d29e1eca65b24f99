"""The end of a node: its pods leave in order, then its volumes, then its instance."""
