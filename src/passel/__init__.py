"""passel: parallel deep reinforcement learning with the synchronisation scheme as a free axis."""
