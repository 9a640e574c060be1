"""Features of music that WanDancer dances to, as the librosa library computes them (McFee et al. 2015)."""
