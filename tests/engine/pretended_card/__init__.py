"""Pretended card: the engine on tensors without numbers, by the rules of a CUDA device, on a machine without one.

`card.py` is the device, `rules.py` what such a device does with each operation, `log.py` what it was asked,
`captures.py` the recorder in the place of CUDA graphs, `runs.py` the engines and workflows.
`fake_tensors.py` are tensors of a CUDA device that is not there, for networks by themselves.
"""
