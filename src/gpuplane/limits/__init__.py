"""Limits of a container on its GPUs: the pages shared with the interposed libraries, and the agent that reconciles."""
