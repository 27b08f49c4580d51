"""What tests share: grids with nodes in this process, samples, fixtures."""
