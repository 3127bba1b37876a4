"""A node's session through trouble: kills, cut connections, distance, a full disk."""
