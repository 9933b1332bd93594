"""``starling report``: a finished run, from its ``metrics.jsonl``."""
