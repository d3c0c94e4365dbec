"""The one training loop and what belongs to it: checkpoints, processes, schedules, selection,
refresh.
"""
