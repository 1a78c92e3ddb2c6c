"""Where keys and values live: `pool` holds the tensors, the stores say which row is whose."""
