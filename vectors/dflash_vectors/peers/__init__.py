"""Published implementations as peers: each answers the ops that its own code computes, and no others."""
