"""How the checkpoint that ships with Darkroom was made: data, training, export, evaluation. See README.md."""
