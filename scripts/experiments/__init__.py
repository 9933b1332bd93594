"""Experiments: which settings learn better, over several seeds. Every module of this folder is a command.

Each experiment writes its report to ``docs/experiments``; ``models`` makes the small models that they train.
"""
