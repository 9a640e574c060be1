"""Model files below `models/`: the known ones, their download, and the check of those that are here."""
