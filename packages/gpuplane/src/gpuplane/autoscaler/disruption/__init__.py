"""The removal of nodes: empty, expired, drifted, dear, interrupted or broken ones."""
