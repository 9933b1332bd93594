"""``starling doctor``: is this machine fit to run a node, and if not, what is to be done?

``*_facts`` look at the machine and judge nothing; ``machine``, ``network`` and ``data_directory`` judge facts, one pure
function a check; ``examination`` puts both together. None of it imports torch: a subprocess looks at that.
"""
