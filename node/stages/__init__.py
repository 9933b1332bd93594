"""One model over several machines: the owner's layers here, the others' on machines that lend (docs/stages.md)."""
