"""Training of the checkpoint that ships with Darkroom: data, training, export, evaluation. See README.md."""
