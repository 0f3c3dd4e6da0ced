"""Where weights come from before training: what layers a network has, and how they take weights of another network."""
