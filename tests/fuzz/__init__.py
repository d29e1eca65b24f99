"""Fuzzers of the public parsers, with the corpus that they start from: `make fuzz`."""
