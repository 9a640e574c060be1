"""The one package of the distribution: `darkroom.worker`, `darkroom.engine` and the rest by mapping (see `setup.py`).

The code imports `worker` and `engine`, as packs of custom nodes do, so both names must be importable where it runs.
`run.py` puts the folder that holds them on the import path of its process; nothing else of it is on the path.
"""
