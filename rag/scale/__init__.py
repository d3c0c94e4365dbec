"""Several machines on Ray (extra `ray`): corpus encoding, sharded search, the refresh's encoding
step.
"""
