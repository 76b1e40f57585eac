"""Laws of decoding as probabilities: what they are in exact arithmetic, and how an implementation's are measured."""
