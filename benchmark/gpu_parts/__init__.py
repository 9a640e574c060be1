"""The parts of `benchmark/gpu.py`, each a module that is run as a process: `python -m benchmark.gpu_parts NAME`.

A module has `measure(bench)`, which notes its figures one by one, so that one that is killed has what came before. A
part that needs processes of its own, one for each case, starts this program with `--case`.
"""
