"""How fast the engine is beside the authors' package and plain decoding, measured in turns in one run."""
