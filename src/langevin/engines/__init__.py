"""What runs the steps of a kernel: blocks of steps, eager or compiled; and the fused CPU kernel of the optimizers."""
