"""Adapters of published models to the engine's protocols."""
