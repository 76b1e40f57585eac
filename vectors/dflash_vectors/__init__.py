"""Golden vectors: suites, bounds, faults and the builder, and the checker that judges implementations by them."""

VERSION = "0.1.0"
"""Of the spec's data and of this generator, as every vector records it."""
