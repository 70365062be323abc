"""Who copies: every copier that takes part is a :class:`~benchmarks.peers.base.Peer`."""
