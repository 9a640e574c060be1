"""The one package of the distribution: the client, and below it the engine, the worker and what both use.

In a checkout `darkroom/engine` and the other rooms are links to the folders at the root.
"""
