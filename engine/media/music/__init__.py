"""Features of music, as the librosa library computes them (McFee et al. 2015); WanDancer dances to them."""
