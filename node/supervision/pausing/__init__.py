"""Whether the node trains now: what its owner asked, its schedule, and what else the machine is used for."""
