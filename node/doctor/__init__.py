"""``starling doctor`` checks whether this machine can run a node, and names a remedy for everything that is wrong.

``*_facts`` collect facts and judge nothing; ``machine``, ``network`` and ``data_directory`` judge facts, one pure
function a check; ``examination`` combines them. Nothing here imports torch: a subprocess examines it.
"""
